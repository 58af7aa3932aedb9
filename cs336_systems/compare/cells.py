"""Cells that both runs measured: which rows may be compared, and which may not."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cs336_systems.compare.statistics import Time, time_of
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import SECONDS, metrics_of
from cs336_systems.experiments.registry import KINDS
from cs336_systems.implementations import PARAMETER, label
from cs336_systems.record.measurement import ORDERED_SAMPLES, SM_CLOCK, parse_samples
from cs336_systems.record.rows import parameters
from cs336_systems.record.validation import Row
from cs336_systems.sizes import size_name

ALSO_COMPARED: Mapping[str, tuple[str, ...]] = {
    "card": ("rate", "bandwidth", "launch_rate", "token_rate"),
    "checkpointing": ("forward", "backward"),
    "end_to_end": ("forward", "backward", "optimizer", "device_busy"),
    "kernel_profile": ("kernel",),
    "training_ladder": ("device_busy", "floor", "copy_speed", "matmul_rate"),
}
"""Metrics that are compared although they are not timed separately."""
RATES = ("GB/s", "TFLOP/s", "1/s")
LARGE_KERNEL = 0.01
"""Kernels with a smaller share of their step's kernel time are not compared individually."""
TOGETHER = "others ("
"""Prefix of the name in a row of several short kernels."""

KNOWN_BY = ("size", "context", "precision", "sequence", "d")
"""Parameters that a cell's name always has."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """One cell of one run: its parameters, and all of its rows."""

    experiment: type[Experiment]
    rows: tuple[Row, ...]

    @property
    def key(self) -> Key:
        """The values that two compared cells share: parameters, seed, number of GPUs and nodes, and dtypes.

        Two versions of a user's implementation are compared by its name, wherever each is imported from.
        """
        row = self.rows[0]
        values = {name: getattr(row, name) for name in parameters(self.experiment)}
        if PARAMETER in values:
            values[PARAMETER] = ",".join(map(label, values[PARAMETER].split(",")))
        place = [getattr(row, name) for name in ("seed", "gpu_count", "nodes", "tf32")]
        dtypes = sorted((each.metric, self.details(each), each.value) for each in self.rows if each.unit == "dtype")
        return (self.experiment.name, *values.values(), *place, *dtypes)

    @property
    def name(self) -> str:
        """The experiment, and each parameter that is not the default or is always shown, in words."""
        row, words = self.rows[0], []
        for field in dataclasses.fields(self.experiment):
            value = getattr(row, field.name)
            if value != field.default or field.name in KNOWN_BY:
                words.append(f"{field.name} {size_name(value) if field.name == 'size' else value}")
        gpus = getattr(row, "gpu_count", 0)
        if gpus > 1:
            words.append(f"{gpus} GPUs")
        return f"{self.experiment.name} ({', '.join(words) or 'defaults'})"

    def details(self, row: Row) -> tuple[str, ...]:
        """The values of a row's detail columns."""
        return tuple(getattr(row, name) for name in self.experiment.details)

    def median(self, metric: str, like: Row | None = None) -> float | None:
        """The median of a metric of the cell, from the row with the details of another row."""
        wanted = self.details(like) if like else None
        rows = [row for row in self.rows if row.metric == metric and row.status == "ok"]
        return next((row.median for row in rows if wanted is None or self.details(row) == wanted), None)

    def compared(self) -> Iterator[Row]:
        """The rows that are compared: times of a step, a pass or a kernel, and rates."""
        wanted = compared_metrics(self.experiment)
        kernels = sum((row.mean or 0) * row.n for row in self.rows if row.metric == "kernel")
        for row in self.rows:
            if row.metric not in wanted or row.status != "ok" or not row.median:
                continue
            if row.metric == "kernel":
                several = getattr(row, "kernel", "").startswith(TOGETHER)
                if several or (row.mean or 0) * row.n < LARGE_KERNEL * kernels:
                    continue
            if row.unit in SECONDS or row.unit in RATES:
                yield row

    def time(self, row: Row, top_clock: float | None) -> Time:
        """A row's time for the statistics; `top_clock` is the highest clock of the run, MHz."""
        # In steady state, which has a row of first steps, low clocks are no sign of a GPU that is still warming up.
        clock = self.median(SM_CLOCK) if self.median("first_steps") is None else None
        time = time_of(
            (row.median or 0.0) * 1e3 * SECONDS.get(row.unit, 1e-3),
            parse_samples(row.samples),
            ordered=row.n <= ORDERED_SAMPLES,
            clock_drop=max(0.0, 1 - clock / top_clock) if clock and top_clock else 0.0,
            is_ms=row.unit in SECONDS,
        )
        if time.n < row.n and row.std and row.mean:  # The samples were not kept.
            return dataclasses.replace(time, n=row.n, spread=row.std / row.mean)
        return time


def compared_metrics(experiment: type[Experiment]) -> set[str]:
    """The metrics of an experiment that are compared, if they are times or rates."""
    timed = {
        name
        for name, metric in metrics_of(experiment).items()
        if metric.timed and not metric.part_of and not metric.unaffected and metric.unit in ("ms", "us")
    }
    return timed | set(ALSO_COMPARED.get(experiment.name, ()))


def cells_of(rows: Iterable[Row]) -> dict[Key, Cell]:
    """The measured cells of a run by their key."""
    grouped: dict[Key, list[Row]] = {}
    for row in rows:
        names = parameters(KINDS[row.experiment])
        grouped.setdefault((row.experiment, *(getattr(row, name) for name in names)), []).append(row)
    cells = [Cell(KINDS[of_cell[0].experiment], tuple(of_cell)) for of_cell in grouped.values()]
    return {cell.key: cell for cell in cells if any(row.status == "ok" for row in cell.rows)}


def top_clock(cells: Iterable[Cell]) -> float | None:
    """The highest SM clock during a run, MHz."""
    clocks = [row.p80 for cell in cells for row in cell.rows if row.metric == SM_CLOCK and row.p80]
    return max(clocks, default=None)
