"""Pack the library for the page's charts, Vega-Lite, as one script that works offline."""

from pathlib import Path
from typing import Any

import vl_convert

from scripts.tools.log import log_to

if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        Path(snakemake.output[0]).write_text(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), encoding="utf-8"
        )
