"""Typeset the report's Typst source as a PDF."""

from pathlib import Path
from typing import Any

import typst

from scripts.rendering.markup import FONT_FOLDER
from scripts.tools.log import log_to


def typeset(source: Path, output: Path) -> None:
    """Typeset a Typst file as a PDF; the same text and pictures give the same bytes.

    Raises:
        RuntimeError: Typst's diagnosis, with line numbers of the source file.
    """
    compiled(source, output=str(output), font_paths=[str(FONT_FOLDER)], timestamp=0)


def compiled(source: Path, **options: Any) -> Any:
    """Compile a file of the project with `typst.compile`; raises as `typeset` does."""
    try:
        # The text itself, since Typst refuses a file on another disk, behind a link; annotated as a path.
        text: Any = source.read_bytes()
        return typst.compile(text, root=".", **options)
    except typst.TypstError as error:
        raise RuntimeError(f"{source}: {error.diagnostic}") from None


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        typeset(Path(snakemake.input.source), Path(snakemake.output[0]))
