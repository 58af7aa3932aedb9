"""Self-checks of contenders that train on several ranks: each does what it declares, on all tokens of its batch."""

from collections.abc import Iterator, Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.contenders import COPY_SLACK, Bounds, differences, gradients, in_words, total
from cs336_systems.implementations import own_implementations
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import size_name
from scripts.checks import Case, Cases, check
from scripts.views.cells import cell_of, contender_key, declared
from scripts.views.communication import MB
from scripts.views.comparison import KINDS, Kind
from scripts.views.completeness import contenders_of
from scripts.views.data import select

DIGITS = 1e-6
"""Relative rounding of bytes that were recorded in another unit."""
PROFILE = ("compute", "communication", "hidden", "device_busy", "timeline_length")
ROUNDING = 0.01
"""Share of a step by which equal times may differ, because of clocks and the timeline's parts."""
COLLECTIVES = {"all_gather", "reduce_scatter"}
"""Collectives that some profiles list separately from the rest of the communication."""
ON_GPUS = "no step on several GPUs was profiled"


class Contender:
    """A contender in a cell, with its rows."""

    def __init__(self, kind: Kind, rows: DataFrame):
        row = rows.iloc[0]
        self.cell, self.key, self.declared = cell_of(kind, row), contender_key(row), declared(kind, row)
        self.own = self.key in [each.name for each in own_implementations(self.cell)]
        self.rows = rows
        plain = rows[rows["kind"] == ""]
        self._numbers = dict(zip(plain["metric"], plain["mean"].astype(float), strict=True))

    def __str__(self) -> str:
        cell = self.cell
        compiled = ", compiled" if getattr(cell, "compiled", False) else ""
        return f"{self.key}, {size_name(cell.size)}, {cell.processes} processes, {cell.precision}{compiled}"

    def one(self, metric: str) -> float | None:
        """Its number of a metric, or None."""
        return self._numbers.get(metric)

    def median(self, metric: str) -> float:
        """The median of one of its metrics."""
        return float(select(self.rows, metric=metric, kind="")["median"].iloc[0])

    def by_kind(self, metric: str) -> Series:
        """Its numbers of a metric, by kind."""
        numbers = self.rows[(self.rows["metric"] == metric) & (self.rows["kind"] != "")]
        return numbers.set_index("kind")["mean"]


def measured(tables: Mapping[str, DataFrame]) -> list[Contender]:
    """Every contender that was measured with this project's model, of any experiment."""
    return [contender for kind in KINDS.values() for contender in contenders(kind, tables[kind.name])]


def contenders(kind: Kind, table: DataFrame) -> list[Contender]:
    """Every contender that was measured with this project's model."""
    table = select(table, status="ok", model=kind.model)
    table = table.assign(key=contenders_of(table))
    groups = table[table["key"] != ""].groupby([*parameters(kind), "key"], sort=False)
    return [Contender(kind, rows) for _, rows in groups]


@check("{n} contender{s}", "no contender was measured")
def all_do_what_they_declare(measured: list[Contender]) -> Cases:
    """Each contender communicates and copies as declared, in number and bytes, and trains on its whole batch.

    Contenders named in the configuration have no declaration, and earlier code did not count everything.
    """
    alone = written_alone(measured)
    for contender in measured:
        why = list(departures(contender, alone.get(contender.cell)))
        yield Case(contender, bool(why), ", ".join(why))


def written_alone(measured: list[Contender]) -> dict[Any, float]:
    """The bytes that a single rank writes in each cell: its baseline's without the declared copies.

    The baseline communicates nothing, or else it is the cell's first contender.
    """
    alone: dict[Any, float] = {}
    schemes = [(each, each.declared) for each in measured if each.declared]
    for contender, scheme in sorted(schemes, key=lambda pair: bool(pair[1].sends(pair[0].cell))):
        if (written := contender.one("written")) is not None:
            copied = scheme.copies * gradients(contender.cell)
            alone.setdefault(contender.cell, written - copied)
    return alone


def departures(contender: Contender, alone: float | None) -> Iterator[str]:
    """Differences between a contender and its declaration; `alone`: the bytes that a single rank writes in its cell."""
    cell, scheme = contender.cell, contender.declared
    batch = cell.batch_size * cell.context
    if (tokens := contender.one("tokens")) not in (None, batch):
        yield f"{tokens:.0f} tokens of {batch}"
    if scheme is None:
        yield from [] if contender.own else ["it has no declaration"]
        return
    sends = scheme.sends(cell)
    if (collectives := contender.one("collectives")) is not None:
        calls, sizes = contender.by_kind("collectives"), contender.by_kind("collective_bytes")
        each = {tuple(kind.split(" ", 1)): (calls[kind], sizes.get(kind, 0.0)) for kind in calls.index}
        yield from differences(sends, each)
        if (calls.sum(), sizes.sum()) != (collectives, contender.one("collective_bytes")):
            yield f"{calls.sum():.0f} collectives, {collectives:.0f} in all"
    messages, communicated = contender.one("messages"), contender.one("communicated")
    number, size = total([sent for sent in sends if "broadcast" not in sent.what])  # of gradients
    if messages is not None and not within(messages, number):
        yield f"{messages:g} messages, and {in_words(number)} declared"
    if communicated is not None and not within(MB * communicated, size):
        yield f"{MB * communicated:.0f} bytes, and {in_words(size)} declared"
    written = contender.one("written")
    if written is not None and alone is not None:
        copies = (written - alone) / gradients(cell)
        if not -COPY_SLACK <= copies <= scheme.copies + COPY_SLACK:
            yield f"gradients written {copies:.2f} times, and {scheme.copies:g} times declared"


def within(number: float, bounds: Bounds) -> bool:
    """Whether a number is within bounds."""
    return bounds[0] * (1 - DIGITS) <= number <= bounds[1] * (1 + DIGITS)


@check("{n} profile{s}", ON_GPUS)
def profiles_add_up(measured: list[Contender]) -> Cases:
    """Profiled computation plus communication, minus their overlap, is the device's busy time.

    It lies within the step, at the times of the timeline. A contender communicates only if it declares so, with the
    kinds of collectives that it declares.
    """
    for contender in measured:
        times = [contender.one(name) for name in PROFILE]
        compute, communication, hidden, busy, length = (time or 0.0 for time in times)
        if times[-1] is None:
            continue
        slack = ROUNDING * length
        kinds, shares = contender.by_kind("communication"), contender.by_kind("timeline")
        timed = length * shares.get("communication", 0.0) if kinds.empty else communication
        wrong = (
            None in times
            or abs(compute + communication - hidden - busy) > slack
            or hidden > min(compute, communication) + slack
            or busy > length + slack
            or kinds.max() > communication + slack
            or abs(timed - communication) > slack
            or not communicates_as_declared(contender, communication, kinds)
        )
        parts = f"{compute:.1f} + {communication:.1f} - {hidden:.1f} ms"
        communicated = "".join(f", {what} {time:.2f} ms" for what, time in kinds.items())
        yield Case(
            contender, wrong, f"{parts}, busy {busy:.1f} of {length:.1f} ms, timeline {timed:.1f} ms{communicated}"
        )


def communicates_as_declared(contender: Contender, communication: float, kinds: Series) -> bool:
    """Whether a profile shows communication, and each declared kind that it lists separately."""
    if contender.declared is None:
        return True
    sends = contender.declared.sends(contender.cell)
    declared = {what for sent in sends for what in sent.what} & COLLECTIVES if len(kinds) else set()
    return bool(sends) == (communication > 0) and all(kinds.get(what, 0.0) > 0 for what in declared)
