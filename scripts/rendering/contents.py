"""The contents of the report: its parts, their sections and the figures, as report/contents.yaml lists them.

The rules read this too, before anything runs: no pandas and no matplotlib here.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from cs336_systems.discovery import modules
from cs336_systems.experiments.base import explain
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.grids import TRACED
from cs336_systems.yaml_file import read_yaml

CONTENTS = Path("report/contents.yaml")
SOURCES = ("tables", TRACE := "trace")
"""The keys of a figure that say what it is drawn from."""


class Figure(BaseModel, extra="forbid", strict=True, frozen=True):
    """One picture of the report."""

    script: str
    """The module of scripts/figures that draws it."""
    tables: list[str] = []
    """The experiments whose tables it is drawn from."""
    trace: str = ""
    """The trace that it is drawn from: the name of its file in `traces`."""
    category: str
    """Its heading in Snakemake's interactive report."""
    caption: str
    """Plain text without a full stop, since the machine's name follows."""
    alt: str
    """The description for readers who cannot see the picture."""
    not_recorded: str = ""
    """Why the recorded H200 does not have it yet."""

    def sources(self, tables: Mapping[str, Any], traces: Mapping[str, str]) -> dict[str, Any]:
        """The tables that it is drawn from, by experiment, or the path of its trace."""
        return {TRACE: traces.get(self.trace, "")} if self.trace else {name: tables[name] for name in self.tables}

    @property
    def modules(self) -> list[str]:
        """The modules whose code determines the figure."""
        scripts = ["scripts.stages.draw", f"scripts.figures.{self.script}"]
        experiments = self.tables or [TRACED[self.trace]]
        return [*scripts, *(f"cs336_systems.experiments.{name}" for name in experiments)]


class Contents(BaseModel, extra="forbid", strict=True, frozen=True):
    """Everything the report contains, in order."""

    parts: dict[str, dict[str, str]]
    """The titles of the sections by their names, by the title of their part."""
    figures: dict[str, Figure]
    """The figures by name."""

    @property
    def sections(self) -> list[str]:
        """The name of every section."""
        return [name for names in self.parts.values() for name in names]


def read_contents(path: Path = CONTENTS) -> Contents:
    """The contents of the report.

    Raises:
        ValueError: an unknown key or value, or a name without its file, in one sentence.
    """
    content = read_yaml(path)
    try:
        contents = Contents.model_validate(content)
        _check_files(contents, path.parent / "sections")
    except ValidationError as error:
        raise ValueError(f"{path}: {_explain(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return contents


def _check_files(contents: Contents, templates: Path) -> None:
    for name, figure in contents.figures.items():
        if name in EXPERIMENTS:
            raise ValueError(
                f"a figure is named {name!r}; allowed: any name except an experiment's, since both name targets"
            )
        check_name(f"figures.{name}.script", figure.script, _stems("scripts.figures"))
        given = [key for key in SOURCES if getattr(figure, key)]
        if len(given) != 1:
            keys = " and ".join(given) or "no source"
            raise ValueError(f"figures.{name} has {keys}; allowed: one of {', '.join(SOURCES)}")
        for table in figure.tables:
            check_name(f"a table of figures.{name}", table, EXPERIMENTS)
        if figure.trace:
            check_name(f"figures.{name}.trace", figure.trace, TRACED)
    for name in contents.sections:
        check_name("a section", name, _stems("scripts.answers"))
        if not (templates / f"{name}.typ.j2").is_file():
            raise ValueError(f"the section {name!r} has no template {templates / name}.typ.j2")
        if contents.sections.count(name) > 1:
            raise ValueError(f"the section {name!r} is listed twice")


def check_name(what: str, name: str, allowed: Iterable[str]) -> None:
    """Raise a ValueError that lists the allowed names unless the name is allowed."""
    if name not in (known := set(allowed)):
        raise ValueError(f"{what} is {name!r}; allowed: {', '.join(sorted(known))}")


def _stems(package: str) -> list[str]:
    return [name.rpartition(".")[2] for name in modules(package)]


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return explain(error)
    *owner, key = map(str, first["loc"])
    known = Figure if owner else Contents
    return f"unknown key {key!r} in {'.'.join(owner) or 'the top level'}; allowed: {', '.join(known.model_fields)}"
