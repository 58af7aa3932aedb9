"""Draw the figures of the report, each only if its code or its source has changed."""

import gc
import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.contents import TRACE
from scripts.rendering.style import NotDrawn, note, save
from scripts.tools.log import log_to
from scripts.tools.processes import in_processes
from scripts.views.data import load_at_one_setting


def drawn(script: str, sources: Iterable[DataFrame | str]) -> Figure:
    """Let a module of scripts/figures draw tables, or the trace at a path; an empty path means that there is none."""
    try:
        figure: Figure = importlib.import_module(f"scripts.figures.{script}").draw(*sources)
    except NotDrawn as reason:
        return note(str(reason))
    return figure


def draw(script: str, output: str, source: Mapping[str, str]) -> None:
    """Draw the tables at some paths, by experiment, or a trace as an SVG."""
    sources = [path if name == TRACE else load_at_one_setting(name, path) for name, path in source.items()]
    save(drawn(script, sources), output)


def draw_if_changed(script: str, output: str, code: str, source: Mapping[str, str]) -> None:
    """Draw a figure unless its SVG ends with the digest of its sources; `code` is the digest of its code."""
    digest = hashlib.sha256(code.encode())
    for path in source.values():
        digest.update(Path(path).read_bytes() if path else b"")
    mark = f"<!-- {digest.hexdigest()} -->\n"
    picture = Path(output)
    if picture.exists() and picture.read_text(encoding="utf-8").endswith(mark):
        picture.touch()
        return
    draw(script, output, source)
    with picture.open("a", encoding="utf-8") as file:
        file.write(mark)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        # A figure's many objects are freed with its process; garbage collection would take an eighth of the time.
        gc.disable()
        in_processes(draw_if_changed, snakemake.params.figures, snakemake.threads)
