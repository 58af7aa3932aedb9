"""Render the report as Typst source: Jinja fills templates with answers computed from the tables."""

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas

from cs336_systems.grids import Job
from cs336_systems.plan import Plan, read_plan
from cs336_systems.sizes import size_name
from scripts.rendering.answer import NOTHING, answers_of
from scripts.rendering.contents import Contents, read_contents
from scripts.rendering.markup import FILTERS, Typst, escape, finalize, string
from scripts.rendering.notes import FOLDER, read_notes
from scripts.tools.log import log_to
from scripts.views.coverage import with_reasons
from scripts.views.data import at_one_setting, load
from scripts.views.story import story
from scripts.views.summary import summarize


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
    return jinja


class Consulted(dict[str, pandas.DataFrame]):
    """Tables that note which of them a section asks for by name."""

    def __init__(self, tables: Mapping[str, pandas.DataFrame]) -> None:
        super().__init__(tables)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> pandas.DataFrame:
        self.names[name] = None
        return super().__getitem__(name)


def compute(
    contents: Contents,
    plan: Plan,
    tables: Mapping[str, pandas.DataFrame],
    coverage: pandas.DataFrame,
    checks: pandas.DataFrame,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Everything in the templates that depends on the tables: `summary`, `story`, `sections` and `tiles`.

    `traces` are the steps, in words, of the traces that figures are drawn from; `notes` are the author's own words,
    from a folder; `experiments` names those whose tables each section consults.
    """
    shown = with_reasons(plan, {name: at_one_setting(name, table) for name, table in tables.items()})
    summary = summarize(tables, plan, coverage, checks)
    modules = {name: importlib.import_module(f"scripts.answers.{name}") for name in contents.sections}
    consulted = {name: Consulted(shown) for name in modules}
    sections = {name: module.answers(consulted[name]) for name, module in modules.items()}
    experiments = {name: list(tables.names) for name, tables in consulted.items()}
    of_sections = [module.tiles(sections[name]) for name, module in modules.items() if hasattr(module, "tiles")]
    return {
        "summary": summary,
        "sections": sections,
        "story": story(shown, sections),
        "notes": read_notes(contents.sections, tables, folder),
        "traces": {name: traced_step(job) for name, job in plan.traced.items() if plan.trace(name).exists()},
        "experiments": experiments,
        "tiles": [tile for of_a_section in of_sections for tile in of_a_section],
    }


def fill(contents: Contents, computed: Mapping[str, Any]) -> str:
    """The report as Typst source, from what `compute` returns."""
    summary, sections = computed["summary"], computed["sections"]
    figure = picture_of(contents, summary["machine"], computed["traces"])
    pictures = sections.get("training_ladder", {}).get("pictures", [])
    first = next((name for name in pictures if figure(name)), "")

    def elsewhere(name: str) -> Typst:
        return NOTHING if name == first else figure(name)

    answers = {name: answers_of(values) for name, values in sections.items()}
    shown_in = {
        name: values | {key: answer.markup(f"{name}-{key}", elsewhere) for key, answer in answers[name].items()}
        for name, values in sections.items()
    }
    template = environment(Path("report")).get_template("writeup.typ.j2")
    source = template.render(
        **{**computed, "sections": shown_in},
        found_in=answers,
        parts=contents.parts,
        figure=elsewhere,
        first_picture=figure(first) if first else NOTHING,
    )
    return re.sub(r"(?<=\d)'(?=s\b)", "’", source)  # after a digit, Typst would print a prime


def traced_step(job: Job) -> str:
    """A step that is traced, as in "2.7B, 4 × 1024 tokens"."""
    step = dataclasses.asdict(job.cells[0])
    return f"{size_name(step['size'])}, {step['batch_size']} × {step['context']} tokens"


def picture_of(contents: Contents, machine: str, traces: Mapping[str, str]) -> Callable[[str], Typst]:
    """The function with which a section shows a figure: from its name to Typst markup, labelled `fig-NAME`.

    A figure of a trace that is not one of those given, by name with their steps, is left out.
    """

    def figure(name: str) -> Typst:
        if name not in contents.figures:
            raise ValueError(f"the report shows the figure {name!r}; allowed: {', '.join(contents.figures)}")
        shown = contents.figures[name]
        if shown.trace and shown.trace not in traces:
            return NOTHING
        step = f" ({traces[shown.trace]})" if shown.trace else ""
        caption = escape(f"{shown.caption}. Measured on {machine}{step}.")
        return Typst(f"#picture({string(name)}, [{caption}], {string(shown.alt)})")

    return figure


def write(plan: str, tables: Mapping[str, str], coverage: str, checks: str, source: str) -> None:
    """Fill the templates with the answers to the tables at the given paths."""
    contents, planned = read_contents(), read_plan(Path(plan))
    loaded = {name: load(name, path) for name, path in tables.items()}
    outcomes = pandas.read_csv(checks, keep_default_na=False)
    computed = compute(contents, planned, loaded, pandas.read_csv(coverage), outcomes)
    Path(source).write_text(fill(contents, computed), encoding="utf-8")


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        write(
            plan=snakemake.input.plan,
            tables={name: snakemake.input[name] for name in snakemake.params.experiments},
            coverage=snakemake.input.coverage,
            checks=snakemake.input.checks,
            source=snakemake.output[0],
        )
