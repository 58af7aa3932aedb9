"""Self-checks of contenders that train on several ranks: each does what it declares, on all tokens of its batch."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.contenders import (
    COPY_SLACK,
    Bounds,
    Declared,
    differences,
    gradients,
    in_words,
    total,
)
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.implementations import own_implementations
from cs336_systems.measure.record import parameters
from cs336_systems.sizes import size_name
from scripts.checks import Check, conclude
from scripts.views.comparison import KINDS, Kind
from scripts.views.completeness import contenders_of
from scripts.views.data import select

MB = 1e6
DIGITS = 1e-6
"""Of bytes that were recorded in another unit."""
PROFILE = ("compute", "communication", "hidden", "device_busy", "timeline_length")
UNDISTURBED = ("naive", "flat", "peer_memory")
"""Wrappers with the whole state that communicate when nothing else runs, or take no SM."""
SAME_WORK = 0.06
"""Relative difference of times of the same work."""
ROUNDING = 0.01
"""Of a step: what clocks, and the timeline's parts, may make times differ by that are equal."""
COLLECTIVES = {"all_gather", "reduce_scatter"}
"""Those that some profiles have apart from the rest of the communication."""
ON_GPUS = "profiled on GPUs only"
NOT_TOLD = "not told by these rows"


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of them."""
    found = [contender for kind in KINDS.values() for contender in contenders(kind, tables[kind.name])]
    yield all_are_declared(found)
    yield collectives_are_the_declared_ones(found)
    yield messages_are_the_declared_ones(found)
    yield all_train_on_their_batch(found)
    yield none_copies_more(found)
    yield profiles_add_up(found)
    yield each_communicates_as_it_declares(found)
    yield the_baseline_computes_what_others_do(found)
    yield the_baseline_is_timed_as_it_is_profiled(found)


class Contender:
    """What was measured of a contender in a cell."""

    def __init__(self, cell: Any, key: str, declared: Declared | None, rows: DataFrame):
        self.cell = cell
        self.own = key in [each.name for each in own_implementations(cell)]
        self.key = key
        self.declared = declared
        self.rows = rows
        plain = rows[rows["kind"] == ""]
        self._numbers = dict(zip(plain["metric"], plain["mean"].astype(float), strict=True))

    def __str__(self) -> str:
        cell = self.cell
        compiled = ", compiled" if getattr(cell, "compiled", False) else ""
        return f"{self.key}, {size_name(cell.size)}, {cell.processes} processes, {cell.precision}{compiled}"

    def one(self, metric: str) -> float | None:
        """The number that it has of a metric, or None."""
        return self._numbers.get(metric)

    def median(self, metric: str) -> float:
        """The median of one of its metrics."""
        return float(select(self.rows, metric=metric, kind="")["median"].iloc[0])

    def by_kind(self, metric: str) -> Series:
        """The numbers that it has of a metric, by kind."""
        found = self.rows[(self.rows["metric"] == metric) & (self.rows["kind"] != "")]
        return found.set_index("kind")["mean"]


def contenders(kind: Kind, table: DataFrame) -> list[Contender]:
    """Every contender that was measured with this project's model."""
    names = parameters(kind)
    table = select(table, status="ok", model=kind.model)
    table = table.assign(key=contenders_of(table))
    declared = {each.key: each for each in kind.contenders}
    groups = table[table["key"] != ""].groupby([*names, "key"], sort=False)
    cells = ((SimpleNamespace(**dict(zip([*names, "key"], values, strict=True))), rows) for values, rows in groups)
    return [Contender(cell, cell.key, declared.get(cell.key), rows) for cell, rows in cells]


def all_are_declared(found: list[Contender]) -> Check:
    """Each has its place in the list that says what identifies it, unless it is named in the configuration."""
    complaints = [str(contender) for contender in found if contender.declared is None and not contender.own]
    check = "every contender that was measured is one that declares what it sends"
    return conclude(check, complaints, len(found), f"{len(found)} contenders")


def told(check: str, found: list[Contender], metric: str, complaints: list[str]) -> Check:
    """A check's outcome, of the contenders that have a metric."""
    known = sum(contender.one(metric) is not None for contender in found)
    lacking = f"; {NOT_TOLD} of {len(found) - known}" if known < len(found) else ""
    return conclude(check, complaints, known, f"{known} contenders{lacking}" if known else NOT_TOLD)


def collectives_are_the_declared_ones(found: list[Contender]) -> Check:
    """The collectives that were seen in a step are those of the closed form, by number and by bytes."""
    complaints = []
    for contender in found:
        if contender.one("collectives") is None or contender.declared is None:
            continue
        calls, sizes = contender.by_kind("collectives"), contender.by_kind("collective_bytes")
        each = {tuple(kind.split(" ", 1)): (calls[kind], sizes.get(kind, 0.0)) for kind in calls.index}
        complaints += [f"{contender}: {why}" for why in differences(contender.declared.sends(contender.cell), each)]
        if (calls.sum(), sizes.sum()) != (contender.one("collectives"), contender.one("collective_bytes")):
            complaints.append(f"{contender}: {calls.sum():.0f} collectives, {contender.one('collectives'):.0f} in all")
    check = "each contender's collectives in a step are those that it declares, by number and bytes"
    return told(check, found, "collectives", complaints)


def messages_are_the_declared_ones(found: list[Contender]) -> Check:
    """The messages that a wrapper counts, and the bytes that it contributes, are those of the closed form."""
    complaints = []
    for contender in found:
        if contender.declared is None:
            continue
        sends = [sent for sent in contender.declared.sends(contender.cell) if "broadcast" not in sent.what]
        calls, sizes = total(sends)  # of gradients
        messages, communicated = contender.one("messages"), contender.one("communicated")
        if messages is not None and not within(messages, calls):
            complaints.append(f"{contender}: {messages:g} messages, and {in_words(calls)} declared")
        if communicated is not None and not within(MB * communicated, sizes):
            complaints.append(f"{contender}: {MB * communicated:.0f} bytes, and {in_words(sizes)} declared")
    check = "the messages that each wrapper counts, and what it communicates, are those that it declares"
    return told(check, found, "messages", complaints)


def within(number: float, bounds: Bounds) -> bool:
    """Whether a number is within bounds."""
    return bounds[0] * (1 - DIGITS) <= number <= bounds[1] * (1 + DIGITS)


def all_train_on_their_batch(found: list[Contender]) -> Check:
    """The model was called with as many tokens as a batch has, without communication, too."""
    complaints = [
        f"{contender}: {tokens:.0f} tokens of {expected}"
        for contender in found
        if (tokens := contender.one("tokens")) is not None
        and tokens != (expected := contender.cell.batch_size * contender.cell.context)
    ]
    check = "every contender, that without communication too, trains on all tokens of its batch"
    return told(check, found, "tokens", complaints)


def none_copies_more(found: list[Contender]) -> Check:
    """None writes all gradients more often, besides what a rank by itself writes, than it declares."""
    alone = {
        cell_of(contender): contender.one("written")
        for contender in found
        if contender.declared is not None and not contender.declared.sends(contender.cell)
    }
    complaints = []
    for contender in found:
        written, floor = contender.one("written"), alone.get(cell_of(contender))
        if written is None or floor is None or contender.declared is None:
            continue
        copies = (written - floor) / gradients(contender.cell)
        if copies > contender.declared.copies + COPY_SLACK:
            complaints.append(f"{contender}: {copies:.2f} times, and {contender.declared.copies:g} times declared")
    check = "no contender writes all gradients more often than it declares, besides what a rank by itself writes"
    return told(check, found, "written", complaints)


def profiles_add_up(found: list[Contender]) -> Check:
    """The device is busy with computation, communication, or both, within the step, and when the timeline says."""
    check = "the profiled computation and communication, less what runs at once, are the device's busy time"
    complaints, examined = [], 0
    for contender in found:
        times = [contender.one(name) for name in PROFILE]
        compute, communication, hidden, busy, length = (time or 0.0 for time in times)
        if times[-1] is None:
            continue
        examined += 1
        slack = ROUNDING * length
        kinds, shares = contender.by_kind("communication"), contender.by_kind("timeline")
        timed = length * shares.get("communication", 0.0) if kinds.empty else communication
        if (
            None in times
            or abs(compute + communication - hidden - busy) > slack
            or hidden > min(compute, communication) + slack
            or busy > length + slack
            or kinds.max() > communication + slack
            or abs(timed - communication) > slack
        ):
            complaints.append(
                f"{contender}: {compute:.1f} + {communication:.1f} - {hidden:.1f} ms, "
                f"busy {busy:.1f} of {length:.1f} ms, timeline {timed:.1f} ms"
            )
    return conclude(check, complaints, examined, f"{examined} profiles" if examined else ON_GPUS)


def each_communicates_as_it_declares(found: list[Contender]) -> Check:
    """The profiler sees communication wherever there is some, and gathers and reductions of those that declare them."""
    check = "profiles show communication of each contender that declares some, and of no other"
    complaints, examined = [], 0
    for contender in found:
        communication = contender.one("communication")
        if communication is None or contender.declared is None:
            continue
        examined += 1
        sends = contender.declared.sends(contender.cell)
        apart = contender.by_kind("communication")
        gathers = {what for sent in sends for what in sent.what} & COLLECTIVES if len(apart) else set()
        if bool(sends) != (communication > 0) or any(not apart.get(what, 0.0) > 0 for what in gathers):
            told = ", ".join(f"{what} {time:.2f} ms" for what, time in apart.items())
            complaints.append(f"{contender}: {communication:.2f} ms{f' ({told})' if told else ''}")
    return conclude(check, complaints, examined, f"{examined} profiles" if examined else ON_GPUS)


def beside_the_baselines(found: list[Contender], *wrappers: str) -> Iterator[tuple[Contender, list[Contender]]]:
    """Each baseline that was profiled, and what else was of its cell, of some wrappers."""
    profiled = [contender for contender in found if contender.one("compute")]
    for floor in profiled:
        if floor.key == FLOOR:
            cell = cell_of(floor)
            yield floor, [each for each in profiled if cell_of(each) == cell and each.key.split()[0] in wrappers]


def the_baseline_computes_what_others_do(found: list[Contender]) -> Check:
    """The device computes as long without communication as with that which disturbs it least."""
    complaints, examined = [], 0
    for floor, others in beside_the_baselines(found, *UNDISTURBED):
        if others:
            examined += 1
            mine, least = floor.one("compute"), min(each.one("compute") or 0 for each in others)
            if abs(least / (mine or 1) - 1) > SAME_WORK:
                complaints.append(f"{floor}: computes for {mine:.1f} ms, with communication {least:.1f} ms")
    check = f"without communication a device computes as long as with it, within {SAME_WORK:.0%}"
    return conclude(check, complaints, examined, f"{examined} cells" if examined else ON_GPUS)


def the_baseline_is_timed_as_it_is_profiled(found: list[Contender]) -> Check:
    """A step without communication takes no less than the device computes in it, and no more than profiled."""
    complaints, examined = [], 0
    for floor, _ in beside_the_baselines(found):
        examined += 1
        step, compute, length = (floor.median(name) for name in ("step", "compute", "timeline_length"))
        if not (1 - SAME_WORK) * compute <= step <= (1 + SAME_WORK) * length:
            complaints.append(f"{floor}: {step:.1f} ms, computes for {compute:.1f} ms of {length:.1f} ms when profiled")
    check = "a step without communication takes no less than it computes for, and no more than when it is profiled"
    return conclude(check, complaints, examined, f"{examined} cells, {SAME_WORK:.0%}" if examined else ON_GPUS)


def cell_of(contender: Contender) -> tuple[Any, ...]:
    """What tells its cell apart, by whatever experiment."""
    return tuple(value for name, value in vars(contender.cell).items() if name != "key")
