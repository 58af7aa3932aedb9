"""Draw the figures of the report, each only if its code, its options or its source has changed."""

import gc
import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.rendering.style import NotDrawn, save_note
from scripts.tools.log import log_to
from scripts.tools.processes import in_processes


def draw(script: str, options: Mapping[str, str], output: str, **source: str) -> None:
    """Let a module of scripts/figures draw its source file as an SVG.

    The source is a keyword argument: `table`, and `second_table` if needed, or `trace`, which is empty if there is
    none; closed forms have no source.
    """
    try:
        importlib.import_module(f"scripts.figures.{script}").draw(**source, output=output, **options)
    except NotDrawn as reason:
        save_note(str(reason), output)


def draw_if_changed(script: str, options: Mapping[str, str], output: str, code: str, source: Mapping[str, str]) -> None:
    """Draw a figure unless its SVG ends with the digest of its sources; `code` is the digest of its code."""
    digest = hashlib.sha256(repr((code, options)).encode())
    for path in source.values():
        digest.update(Path(path).read_bytes() if path else b"")
    mark = f"<!-- {digest.hexdigest()} -->\n"
    picture = Path(output)
    if picture.exists() and picture.read_text(encoding="utf-8").endswith(mark):
        picture.touch()
        return
    draw(script, options, output, **source)
    with picture.open("a", encoding="utf-8") as file:
        file.write(mark)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        # A figure's many objects are freed with its process; garbage collection would take an eighth of the time.
        gc.disable()
        # Before the processes fork, so that it is done once.
        importlib.import_module("scripts.views.data")
        in_processes(draw_if_changed, snakemake.params.figures, snakemake.threads)
