"""The headline figures of the title page, and those of the recorded machine next to them."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas
from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.rendering.contents import Contents
from scripts.rendering.markup import Tile, Typst
from scripts.views.data import at_one_setting, measured_gpu, select


@dataclass(frozen=True)
class Reference:
    """Headline figures of the recorded machine."""

    machine: str = ""
    """Its GPU model."""
    numbers: Mapping[str, Typst] = field(default_factory=dict)
    """The figures by their quantity."""


def headlines(contents: Contents, tables: Mapping[str, DataFrame]) -> list[Tile]:
    """The headline figures of all sections, from tables at one setting."""
    modules = [importlib.import_module(f"scripts.answers.{name}") for name in contents.sections]
    return [tile for module in modules if hasattr(module, "tiles") for tile in module.tiles(module.answers(tables))]


def compare(
    contents: Contents,
    tiles: Sequence[Tile],
    tables: Mapping[str, DataFrame],
    recorded: Mapping[str, DataFrame],
) -> Reference:
    """The recorded machine's figures of the same quantities, over the cells that both machines have measured.

    A figure is omitted if the report's own would differ over these cells: then the difference would be due to the
    cells, not only to the machines.
    """
    here, there = {}, {}
    for name, table in tables.items():
        here[name], there[name] = shared(name, table, recorded[name])
    own, theirs = ({tile.quantity: tile.number for tile in headlines(contents, rows)} for rows in (here, there))
    same = [tile.quantity for tile in tiles if tile.quantity and own.get(tile.quantity) == tile.number]
    return Reference(measured_gpu(recorded), {quantity: theirs[quantity] for quantity in same if quantity in theirs})


def shared(experiment: str, table: DataFrame, recorded: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The measured rows of two tables at one setting whose cell and metric exist in both."""
    rows = [select(at_one_setting(experiment, each), status="ok") for each in (table, recorded)]
    keys = [*parameters(EXPERIMENTS[experiment]), "metric"]
    here, there = (pandas.MultiIndex.from_frame(each[keys]) for each in rows)
    return rows[0][here.isin(there)], rows[1][there.isin(here)]
