"""Render the report: Jinja fills Typst templates with values computed from the tables, Typst typesets the PDF."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas
import typst

from cs336_systems.plan import Plan, make_plan
from scripts.answers import (
    benchmarking_mixed_precision,
    benchmarking_script,
    flash,
    flash_backward,
    flash_benchmarking,
    mixed_precision_accumulation,
    pytorch_attention,
    summary,
    torch_compile,
)
from scripts.data import load, typical
from scripts.log import log_to
from scripts.typst import FILTERS, FONT_FOLDER, finalize

PARTS: dict[str, dict[str, Callable[[Mapping[str, pandas.DataFrame]], dict[str, Any]]]] = {
    "Benchmarking and profiling, one device": {
        "benchmarking_script": benchmarking_script.answers,
        "mixed_precision_accumulation": mixed_precision_accumulation.answers,
        "benchmarking_mixed_precision": benchmarking_mixed_precision.answers,
    },
    "Attention": {
        "pytorch_attention": pytorch_attention.answers,
        "torch_compile": torch_compile.answers,
        "flash_forward": flash.answers,
        "flash_backward": flash_backward.answers,
        "flash_benchmarking": flash_benchmarking.answers,
    },
}
"""The report's parts and their sections, in order: each section has a template of its name in report/sections."""


def environment(templates: Path) -> jinja2.Environment:
    """Jinja with delimiters that do not clash with Typst, in which an undefined name is an error."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters.update(FILTERS)
    jinja.tests["search"] = lambda text, part: part in text
    return jinja


def render(
    plan: Plan, tables: Mapping[str, pandas.DataFrame], coverage: pandas.DataFrame, checks: pandas.DataFrame
) -> str:
    """The report as Typst source."""
    shown = {name: typical(name, table) for name, table in tables.items()}
    return (
        environment(Path("report"))
        .get_template("writeup.typ.j2")
        .render(
            summary=summary.answers(tables, plan, coverage, checks),
            parts={part: list(sections) for part, sections in PARTS.items()},
            sections={name: answers(shown) for part in PARTS.values() for name, answers in part.items()},
            commands={name: [job.command for job in jobs.values()] for name, jobs in plan.jobs.items()},
        )
    )


def typeset(source: Path, output: Path) -> None:
    """Typeset a Typst file.

    Raises:
        RuntimeError: Typst's diagnosis, with line numbers of the source file.
    """
    try:
        # A fixed date: the same tables give the same bytes.
        typst.compile(str(source), output=str(output), root=".", font_paths=[str(FONT_FOLDER)], timestamp=0)
    except typst.TypstError as error:
        raise RuntimeError(f"{source}: {error.diagnostic}") from None


def write(
    config: Mapping[str, Any], tables: Mapping[str, str], coverage: str, checks: str, source: str, output: str
) -> None:
    """Render and typeset the report of the tables at the given paths."""
    loaded = {name: load(name, path) for name, path in tables.items()}
    text = render(make_plan(config), loaded, pandas.read_csv(coverage), pandas.read_csv(checks, keep_default_na=False))
    Path(source).write_text(text, encoding="utf-8")
    typeset(Path(source), Path(output))


if __name__ == "__main__":
    with log_to(snakemake.log[0]):
        write(
            config=snakemake.config,
            tables={name: snakemake.input[name] for name in snakemake.params.experiments},
            coverage=snakemake.input.coverage,
            checks=snakemake.input.checks,
            source=snakemake.output.source,
            output=snakemake.output.pdf,
        )
