"""The documentation's page of recorded machines, from the rows in recorded/."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas
from pandas import DataFrame, Series

from cs336_systems.compare.comparison import compare
from cs336_systems.compare.output import to_text
from cs336_systems.compare.results import read_results
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.machine import SOFTWARE
from cs336_systems.record.measurement import WHOLE_CELL
from cs336_systems.record.revisions import is_current
from cs336_systems.record.rows import parameters
from scripts.card.record import read_cards
from scripts.card.verdict import decide_in_order
from scripts.docs.markdown import table, with_sections
from scripts.docs.readme import COMPARED, headlines
from scripts.views.summary import seconds_of


def page(text: str, recorded: Path = Path("recorded")) -> str:
    """The text of the page with a section for each recorded machine."""
    machines = sorted(path for path in recorded.iterdir() if any(path.glob("raw/*/*.csv")))
    return with_sections(text, [part for machine in machines for part in section(machine)])


def section(machine: Path) -> Iterator[str]:
    """A machine: its description, headline numbers, measurements, and times under other software (NAME/LABEL)."""
    tables = {name: read(sorted((machine / "raw" / name).glob("*.csv"))) for name in EXPERIMENTS}
    tables = {name: rows for name, rows in tables.items() if len(rows)}
    rows = pandas.concat(tables.values())
    counts = [int(count) for count in values(rows, "gpu_count") if count != "0"]
    commits = len(values(rows, "git_commit"))
    processors = listed(values(rows, "cpu"))
    yield f"## {listed(values(rows, 'gpu')) or processors}\n"
    yield table(
        ["", ""],
        [
            ["label", f"`{machine.name}`"],
            *([["GPUs", listed(map(str, sorted(counts)))]] if counts else []),
            ["processor", processors],
            *([title, versions] for column, title in SOFTWARE.items() if (versions := listed(values(rows, column)))),
            ["measured", " to ".join(dict.fromkeys(day(rows["utc"], end) for end in ("min", "max")))],
            ["code", f"{commits} commit{'s' if commits > 1 else ''}"],
            *(
                [f"card of {verdict.rows[0].utc[:10]}", listed([verdict.sentence])]
                for verdict in decide_in_order(read_cards(machine, machine.name)).values()
            ),
        ],
    )
    if compared := list(headlines(machine / "raw")):
        yield table(["medians", *COMPARED], compared, right=[1])
    yield table(
        ["experiment", "jobs", "cells", "measured", "not measured", "minutes", "last", "to record again"],
        [[f"`{name}`", *summary(name, of_experiment)] for name, of_experiment in tables.items()],
    )
    for other in sorted(machine.parent.glob(f"*/{machine.name}")):
        yield f"### {other.parent.name}\n"
        text = to_text(compare(read_results(str(machine)), read_results(str(other))))
        yield f"```text\n{text.replace('`', '?')}\n```\n"


def read(csvs: Iterable[Path]) -> DataFrame:
    """The rows of an experiment's CSV files, as text."""
    frames = [pandas.read_csv(path, dtype=str, keep_default_na=False).assign(job=path.stem) for path in csvs]
    return pandas.concat(frames).fillna("") if frames else DataFrame()


def summary(experiment: str, rows: DataFrame) -> list[str]:
    """An experiment's number of jobs, cells, measured cells and others, its minutes, its last day, and earlier jobs.

    The latter have rows of other revisions of the code than the present ones.
    """
    cell = [name for name in parameters(EXPERIMENTS[experiment]) if name in rows]
    lost = len(rows[rows["metric"] == WHOLE_CELL].drop_duplicates(cell))
    cells = len(rows.drop_duplicates(cell))
    seconds = seconds_of(rows.assign(**rows[["mean", "startup_seconds"]].apply(pandas.to_numeric)))
    counts = (rows["job"].nunique(), cells, cells - lost, lost)
    earlier = values(rows[rows["revisions"].map(is_current).eq(False)], "job")
    return [*map(str, counts), f"{seconds / 60:.1f}", day(rows["utc"], "max"), listed(earlier)]


def day(times: Series, which: str) -> str:
    """The first (min) or the last (max) day of times."""
    return f"{pandas.to_datetime(times, utc=True, format='ISO8601').agg(which):%Y-%m-%d}"


def values(rows: DataFrame, column: str) -> list[str]:
    """The existing values of a column."""
    return sorted(set(rows[column]) - {""}) if column in rows else []


def listed(untrusted: Iterable[str]) -> str:
    """Untrusted values, without anything that Markdown or a browser would interpret."""
    return ", ".join(re.sub(r"[^\w \u202f.,;()+@:/%×-]", "?", value) for value in untrusted)
