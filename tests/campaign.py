"""Random single edits of the recorded tables, and the share of them that something notices.

Launch: python -m tests.campaign FIRST LAST [STEP], which plants an edit per seed, prints those that nothing notices,
and counts them by kind. Each edit is one of a file whose digest was written anew, and the golden report, in which most
edits show as a difference, is not asked.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pandas
from pandas import DataFrame, Index, Series

from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import Measurement, format_samples, parse_samples, summarize
from cs336_systems.measure.record import parameters
from cs336_systems.plan import Plan, make_plan
from scripts.views.cells import in_words
from tests.samples import ROOT, config
from tests.support.faults import NUMBERS, Tables, multiply, noticed, recorded

STATISTICS = [*NUMBERS, "n", "samples"]
VERSIONS = ["torch", "triton", "cuda", "cudnn", "driver", "python", "cpu"]
CLOCKED = ["ms", "s", "us"]
SLIPS = [1e3, 1e-3]


class Inapplicable(Exception):
    """The table has nothing that an edit of the kind could change."""


Edit = Callable[[Random, DataFrame, type[Experiment]], DataFrame]
"""Changes a copy of an experiment's table; returns it."""


def cells_of(table: DataFrame, kind: type[Experiment]) -> dict[tuple[object, ...], Index]:
    """The rows of each cell."""
    return {cell: rows.index for cell, rows in table.groupby(parameters(kind), sort=False)}


def any_cell(rng: Random, table: DataFrame, kind: type[Experiment]) -> Index:
    """The rows of one cell, all cells being equally likely."""
    if table.empty:
        raise Inapplicable
    return rng.choice(list(cells_of(table, kind).values()))


def any_row(rng: Random, table: DataFrame, kind: type[Experiment]) -> int:
    """A row of any cell."""
    return rng.choice(list(any_cell(rng, table, kind)))


def numeric(table: DataFrame) -> DataFrame:
    """The rows with a number that a factor changes."""
    return table[table["mean"].notna() & (table["mean"] != 0)]


def another(rng: Random, values: Series, present: object) -> object:
    """Another value that a column has, or one like it."""
    if others := [value for value in values.unique() if value != present]:
        return rng.choice(others)
    if isinstance(present, bool):
        return not present
    if isinstance(present, str):
        return f"{present}1"
    return type(present)(2 * present) or 1


def part(rng: Random, least: float, most: float) -> float:
    """A factor that adds or takes away a share."""
    return 1 + rng.choice([-1, 1]) * rng.uniform(least, most)


def row_times(factor: Callable[[Random], float]) -> Edit:
    """A row multiplied, samples and all, so that it agrees with itself."""

    def edit(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
        multiply(table, Index([any_row(rng, numeric(table), kind)]), factor(rng))
        return table

    return edit


def cell_times(factor: Callable[[Random], float]) -> Edit:
    """All times of a cell multiplied."""

    def edit(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
        clocked = numeric(table[table["unit"].isin(CLOCKED)])
        multiply(table, any_cell(rng, clocked, kind), factor(rng))
        return table

    return edit


def one_number(*columns: str) -> Edit:
    """One statistic of a row alone."""

    def edit(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
        column = rng.choice(columns)
        row = any_row(rng, table[table[column].notna() & (table[column] != 0)], kind)
        table.loc[row, column] *= part(rng, 0.05, 0.3)
        return table

    return edit


def number_of_samples(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    table.loc[any_row(rng, table, kind), "n"] += rng.choice([-1, 1, 10])
    return table


def with_samples(table: DataFrame) -> DataFrame:
    return table[table["samples"].str.contains(" ")]


def a_sample_alone(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, with_samples(table), kind)
    table.loc[row, "samples"] = format_samples(one_changed(rng, parse_samples(table.loc[row, "samples"])))
    return table


def one_changed(rng: Random, samples: list[float]) -> list[float]:
    """One sample longer or shorter."""
    place = rng.randrange(len(samples))
    return [sample * part(rng, 0.1, 0.9) if index == place else sample for index, sample in enumerate(samples)]


def samples_and_statistics(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, with_samples(table), kind)
    found: Measurement = summarize("", "", one_changed(rng, parse_samples(table.loc[row, "samples"])))
    table.loc[row, STATISTICS] = [getattr(found, name) for name in STATISTICS]
    return table


def samples_in_another_order(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, with_samples(table), kind)
    samples = parse_samples(table.loc[row, "samples"])
    table.loc[row, "samples"] = format_samples(rng.sample(samples, len(samples)))
    return table


def other_rows(table: DataFrame, row: int, same: list[str]) -> DataFrame:
    """The other rows that have the same in some columns."""
    alike = (table[same] == table.loc[row, same]).all(axis=1) & (table["mean"] != table.loc[row, "mean"])
    return table[alike & table["mean"].notna()]


def from_another_cell(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, numeric(table), kind)
    other = any_row(rng, other_rows(table, row, ["metric", *kind.details]), kind)
    table.loc[row, STATISTICS] = table.loc[other, STATISTICS]
    return table


def exchange(table: DataFrame, one: int, other: int, columns: list[str]) -> DataFrame:
    """Two rows with each other's values."""
    table.loc[[one, other], columns] = table.loc[[other, one], columns].to_numpy()
    return table


def exchanged_with_another_cell(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, numeric(table), kind)
    other = any_row(rng, other_rows(table, row, ["metric", *kind.details]), kind)
    return exchange(table, row, other, STATISTICS)


def exchanged_within_a_cell(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, numeric(table), kind)
    other = any_row(rng, other_rows(table, row, [*parameters(kind), "unit"]), kind)
    return exchange(table, row, other, STATISTICS)


def two_cells(rng: Random, table: DataFrame, kind: type[Experiment]) -> tuple[Index, Index]:
    """Two cells that differ in one parameter."""
    cells = list(cells_of(table[table["status"] == "ok"], kind).items())
    one, rows = rng.choice(cells)
    near = [there for other, there in cells if sum(a != b for a, b in zip(one, other, strict=True)) == 1]
    if not near:
        raise Inapplicable
    return rows, rng.choice(near)


def pairs(table: DataFrame, one: Index, other: Index, kind: type[Experiment]) -> Iterator[tuple[int, int]]:
    """The rows that two cells both have."""
    what = ["metric", *kind.details]
    there = {tuple(values): row for row, values in zip(other, table.loc[other, what].to_numpy(), strict=True)}
    for row, values in zip(one, table.loc[one, what].to_numpy(), strict=True):
        if tuple(values) in there:
            yield row, there[tuple(values)]


def a_cell_of_another(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    for row, other in list(pairs(table, *two_cells(rng, table, kind), kind)):
        table.loc[row, STATISTICS] = table.loc[other, STATISTICS]
    return table


def two_cells_exchanged(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    one, other = two_cells(rng, table, kind)
    table.loc[one, parameters(kind)], table.loc[other, parameters(kind)] = (
        table.loc[other, parameters(kind)].iloc[[0] * len(one)].to_numpy(),
        table.loc[one, parameters(kind)].iloc[[0] * len(other)].to_numpy(),
    )
    return table


def without_a_row(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return table.drop(any_row(rng, table, kind))


def without_a_cell(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return table.drop(any_cell(rng, table, kind))


def a_row_twice(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return pandas.concat([table, table.loc[[any_row(rng, table, kind)]]], ignore_index=True)


def a_cell_twice(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    copies = relabelled(rng, table, table.loc[any_cell(rng, table, kind)], parameters(kind))
    return pandas.concat([table, copies], ignore_index=True)


def relabelled(rng: Random, table: DataFrame, rows: DataFrame, columns: list[str]) -> DataFrame:
    """Rows with another value in one of the columns."""
    column = rng.choice(columns)
    return rows.assign(**{column: another(rng, table[column], rows[column].iloc[0])})


def put(table: DataFrame, rows: DataFrame) -> DataFrame:
    """The table with some of its rows replaced."""
    return pandas.concat([table.drop(rows.index), rows]).sort_index()


def row_label(*columns: str) -> Edit:
    """Another label of a row, as other rows have it."""

    def edit(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
        rows = table.loc[[any_row(rng, table, kind)]]
        return put(table, relabelled(rng, table, rows, list(columns)))

    return edit


def a_rows_parameter(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return row_label(*parameters(kind))(rng, table, kind)


def a_cells_parameter(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return put(table, relabelled(rng, table, table.loc[any_cell(rng, table, kind)], parameters(kind)))


def a_detail(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    if not kind.details:
        raise Inapplicable
    column = rng.choice(kind.details)
    edited_rows = row_label(column)(rng, table[table[column] != ""], kind)
    return edited_rows.reindex(table.index).combine_first(table).astype(table.dtypes)


def a_value(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    there = table[table["value"] != ""]
    row = any_row(rng, there, kind)
    table.loc[row, "value"] = another(rng, there["value"], table.loc[row, "value"])
    return table


def lost(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    row = any_row(rng, table[table["status"] == "ok"], kind)
    table.loc[row, NUMBERS] = None
    table.loc[row, ["n", "samples", "value", "status"]] = [0, "", "", rng.choice(["oom", "skipped", "failed"])]
    table.loc[row, "message"] = "made up"
    return table


def of_a_job(*columns: str) -> Edit:
    """Another origin of all rows of a file."""

    def edit(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
        utc = rng.choice(list(table["utc"].unique()))
        return put(table, relabelled(rng, table, table[table["utc"] == utc], list(columns)))

    return edit


def two_files(rng: Random, table: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows of two files: a job's rows have one time."""
    times = list(table["utc"].unique())
    if len(times) < 2:
        raise Inapplicable
    one, other = rng.sample(times, 2)
    return table[table["utc"] == one], table[table["utc"] == other]


def numbers_of_another_file(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    one, other = two_files(rng, table)
    fewest = min(len(one), len(other))
    table.loc[one.index[:fewest], ["metric", "unit", *STATISTICS]] = other.iloc[:fewest][
        ["metric", "unit", *STATISTICS]
    ].to_numpy()
    return table


def without_a_file(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    return table.drop(two_files(rng, table)[0].index)


def without_the_rest_of_a_file(rng: Random, table: DataFrame, kind: type[Experiment]) -> DataFrame:
    rows = table[table["utc"] == rng.choice(list(table["utc"].unique()))].index
    return table.drop(rows[rng.randrange(1, len(rows)) :])


KINDS: dict[str, Edit] = {
    "a row × 2 or ÷ 2": row_times(lambda rng: rng.choice([2, 0.5])),
    "a row × 10 or ÷ 10": row_times(lambda rng: rng.choice([10, 0.1])),
    "a row × 1000 or ÷ 1000, as a slip of units": row_times(lambda rng: rng.choice(SLIPS)),
    "a row ± 5 %": row_times(lambda rng: rng.choice([0.95, 1.05])),
    "a row ± 10 to 30 %": row_times(lambda rng: part(rng, 0.1, 0.3)),
    "a mean alone": one_number("mean"),
    "another statistic alone": one_number("median", "p20", "p80", "std"),
    "a number of samples": number_of_samples,
    "a sample alone": a_sample_alone,
    "a sample and its statistics": samples_and_statistics,
    "samples in another order": samples_in_another_order,
    "a row's numbers from another cell": from_another_cell,
    "a row's numbers exchanged with another cell's": exchanged_with_another_cell,
    "two metrics' numbers exchanged": exchanged_within_a_cell,
    "all times of a cell ± 10 to 30 %": cell_times(lambda rng: part(rng, 0.1, 0.3)),
    "all times of a cell × 2 or ÷ 2": cell_times(lambda rng: rng.choice([2, 0.5])),
    "a cell's numbers from another": a_cell_of_another,
    "two cells exchanged": two_cells_exchanged,
    "a row deleted": without_a_row,
    "a cell deleted": without_a_cell,
    "a row twice": a_row_twice,
    "a cell a second time, under another name": a_cell_twice,
    "a unit": row_label("unit"),
    "a status": row_label("status"),
    "a measured row as lost": lost,
    "a metric": row_label("metric"),
    "a row's parameter": a_rows_parameter,
    "a cell's parameter": a_cells_parameter,
    "a detail": a_detail,
    "a dtype": a_value,
    "a row's GPU": row_label("gpu", "gpu_count", "gpu_memory"),
    "a row's versions, seed or TF32": row_label(*VERSIONS, "seed", "tf32"),
    "a row's commit, digest or time": row_label("git_commit", "git_dirty", "source_digest", "utc", "startup_seconds"),
    "a file's versions or seed": of_a_job(*VERSIONS, "seed"),
    "a file's numbers from another": numbers_of_another_file,
    "a file deleted": without_a_file,
    "a file cut off": without_the_rest_of_a_file,
}
"""Every kind of edit, equally likely; so are the experiments."""


def edited(rng: Random, tables: Tables) -> tuple[str, str, DataFrame]:
    """A kind of edit, an experiment, and its table after it."""
    kind = rng.choice(list(KINDS))
    while True:
        name = rng.choice([name for name, table in tables.items() if len(table)])
        table = tables[name]
        try:
            found = KINDS[kind](rng, table.copy(), EXPERIMENTS[name])
        except Inapplicable:
            continue
        if not found.equals(table):
            return kind, name, found


def described(name: str, before: DataFrame, after: DataFrame) -> str:
    """The first row that an edit changed, and what."""
    kind = EXPERIMENTS[name]
    common = before.index.intersection(after.index)
    old, new = before.loc[common], after.loc[common, before.columns]
    differ = (old != new) & ~(old.isna() & new.isna())
    changed = differ.any(axis=1)
    if not changed.any():
        return f"{name}: {len(after) - len(before):+d} rows"
    row = old[changed].iloc[0]
    columns = differ.loc[row.name][lambda there: there].index
    cell = in_words(kind, tuple(row[parameters(kind)]))
    what = " ".join([row["metric"], *(row[detail] for detail in kind.details)]).strip()
    values = ", ".join(f"{column} {row[column]!s:.20} -> {new.loc[row.name, column]!s:.20}" for column in columns[:2])
    return f"{cell} {what}: {values} ({int(changed.sum())} rows)"


def main(first: int, last: int, step: int = 1) -> None:
    """Plant an edit per seed, print what nothing notices, and at the end the shares by kind."""
    plan: Plan = make_plan(config(machine="1 x NVIDIA H200"))
    tables = {name: table.reset_index(drop=True) for name, table in recorded(ROOT / "recorded/nvidia-h200/raw").items()}
    planted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for seed in range(first, last, step):
        kind, name, after = edited(Random(seed), tables)
        planted[kind] += 1
        if noticed(plan, tables, name, after):
            found[kind] += 1
        else:
            print(f"{seed} {kind}: {described(name, tables[name], after)}", flush=True)
    print()
    for kind in KINDS:
        print(f"{found[kind]:4d} of {planted[kind]:4d}  {kind}")
    print(f"{found.total():4d} of {planted.total():4d}  noticed")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
