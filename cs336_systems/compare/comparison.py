"""Two runs, cell by cell: the ratio of times with its interval, a verdict, and what bounds the cell."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cs336_systems.compare.bounds import Bound, bound, device_bound
from cs336_systems.compare.cells import Cell, cells_of, top_clock
from cs336_systems.compare.cost import Cost, cost
from cs336_systems.compare.results import Results
from cs336_systems.compare.samples import Samples
from cs336_systems.compare.speed import SLOWER, UNDECIDED, Verdict
from cs336_systems.compare.statistics import MARGIN, Difference, decide, difference, run_to_run, widening
from cs336_systems.record.revisions import same_code
from cs336_systems.record.validation import Row

SAMPLES = "samples"
"""The name that other tools' times have instead of an experiment's."""
STATED = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "triton", "flash_attn", "python", "git_commit")
"""Provenance whose differences are stated first."""
VERSIONS = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "torch_files", "triton", "python")
"""Columns that, with the code's digest, identify the same program on the same kind of machine."""
HOST_SETS_PACE = "host-bound: the host's speed varies too much from run to run"
COMMIT_CHARACTERS, MOST_LISTED = 10, 3
CPU_SHARES, CPU_TAIL, QUIET = (0.5, 0.9), 2.0, 0.02
"""On a CPU, only unchanged cells decide: the calibrated machine was loaded by other programs, and most are not.
Temporary loads leave most cells unaffected, so the tail counts, at twice its value; the factor is at least 0.02."""
NOT_CALIBRATED = "communication-bound: no two unchanged runs are recorded for calibration"
NOT_KNOWN = "not known whether host-bound or device-bound"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One time of one cell in both runs."""

    experiment: str
    cell: str
    metric: str
    details: str
    a: float
    """Median of the first run, in the unit."""
    b: float
    unit: str
    difference: Difference
    bound: Bound
    verdict: Verdict = UNDECIDED
    reason: str = ""
    """Why it cannot be decided."""
    same_code: bool
    """Whether both rows have the same digest of their code."""
    cost_a: Cost | None = None
    cost_b: Cost | None = None

    @property
    def comparable(self) -> bool:
        """Whether the statistics decided: false for host-bound rows and rows with too little information."""
        return self.reason not in (HOST_SETS_PACE, NOT_CALIBRATED, NOT_KNOWN)

    @property
    def name(self) -> str:
        """The cell, its details and the metric, in words."""
        return ": ".join(part for part in (self.cell, self.details, self.metric) if part)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs: the cells that they share, and how they differ."""

    a: str
    b: str
    cells: tuple[Compared, ...]
    only_a: tuple[str, ...]
    """Names of the cells that only the first run has."""
    only_b: tuple[str, ...]
    differs: Mapping[str, tuple[str, str]]
    """Columns that differ between the runs, with the values of both."""
    same_code: Mapping[str, bool]
    """Whether both runs measured an experiment with the same revisions of the code, by its name."""
    widened: float
    """Factor on all intervals: how much more the cells of unchanged code differ than calibrated."""
    margin: float
    on_gpu: bool
    """Whether a GPU's times are compared, which differ less from run to run."""

    def count(self, verdict: Verdict) -> int:
        """Number of cells with a verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    def slower_by(self, share: float) -> list[Compared]:
        """The cells whose verdict is slower and whose time grew by at least the given share, slowest first."""
        slower = [cell for cell in self.cells if cell.verdict == SLOWER and cell.difference.ratio >= 1 + share]
        return sorted(slower, key=lambda cell: -cell.difference.ratio)


def compare(
    a: Results,
    b: Results,
    *,
    margin: float = MARGIN,
    price_a: float | None = None,
    price_b: float | None = None,
) -> Comparison:
    """Compare two runs; prices are per GPU-hour.

    Raises:
        ValueError: they are the same folder, or have no common cell, in one sentence.
    """
    if a.raw.resolve() == b.raw.resolve():
        raise ValueError(f"{a.name} and {b.name} are the same folder, {a.raw}; allowed: two folders")
    cells_a, cells_b = cells_of(a.rows), cells_of(b.rows)
    pairs = [pair for key in cells_a if key in cells_b for pair in matched(cells_a[key], cells_b[key])]
    if not pairs:
        raise ValueError(
            f"{a.name} and {b.name} have no common cell; allowed: folders that share a cell with the same"
            " parameters, seed, dtypes and number of GPUs"
        )
    tops = top_clock(cells_a.values()), top_clock(cells_b.values())
    on_gpu = bool(a.rows[0].gpu)
    rough = [compared(*pair, tops, (price_a, price_b), on_gpu=on_gpu) for pair in pairs]
    unchanged = [
        cell.difference
        for cell, (_, row_a, _, row_b) in zip(rough, pairs, strict=True)
        if cell.comparable and cell.same_code and relaunched(row_a, row_b)
    ]
    cells, widened = decided(rough, unchanged, margin, on_gpu=on_gpu)
    rows_a, rows_b = [pair[1] for pair in pairs], [pair[3] for pair in pairs]
    experiments = dict.fromkeys(cell.experiment for cell in cells)
    return Comparison(
        a=a.name,
        b=b.name,
        cells=cells,
        only_a=tuple(cells_a[key].name for key in cells_a if key not in cells_b),
        only_b=tuple(cells_b[key].name for key in cells_b if key not in cells_a),
        differs=differing(rows_a, rows_b),
        same_code={name: all(cell.same_code for cell in cells if cell.experiment == name) for name in experiments},
        widened=widened,
        margin=margin,
        on_gpu=on_gpu,
    )


def compare_samples(a: Samples, b: Samples, *, on_gpu: bool, margin: float = MARGIN) -> Comparison:
    """Compare two files of another tool.

    They do not show which times are of unchanged code. If there are enough times, most are assumed to be: their
    differences show how far runs on this machine differ.

    Raises:
        ValueError: they are the same file, or have no common name, in one sentence.
    """
    if a.path.resolve() == b.path.resolve():
        raise ValueError(f"{a.name} and {b.name} are the same file; allowed: two files")
    common = [name for name in a.times if name in b.times]
    if not common:
        raise ValueError(f"{a.name} and {b.name} have no common name; allowed: at least one")
    rough = [
        Compared(
            experiment=SAMPLES,
            cell=name,
            metric="",
            details="",
            a=a.times[name].median,
            b=b.times[name].median,
            unit="ms",
            difference=difference(a.times[name], b.times[name], run_to_run(on_gpu=on_gpu)),
            bound="unknown",
            same_code=False,
        )
        for name in common
    ]
    cells, widened = decided(rough, [cell.difference for cell in rough], margin, on_gpu=on_gpu)
    about = {name: (a.about.get(name, ""), b.about.get(name, "")) for name in {**a.about, **b.about}}
    return Comparison(
        a=a.name,
        b=b.name,
        cells=cells,
        only_a=tuple(name for name in a.times if name not in b.times),
        only_b=tuple(name for name in b.times if name not in a.times),
        differs={name: both for name, both in about.items() if both[0] != both[1]},
        same_code={},
        widened=widened,
        margin=margin,
        on_gpu=on_gpu,
    )


def decided(
    rough: Sequence[Compared], unchanged: Sequence[Difference], margin: float, *, on_gpu: bool
) -> tuple[tuple[Compared, ...], float]:
    """Times with their verdicts, or with the reason why there is none, and the factor on all intervals.

    The factor is required by the times of unchanged code.
    """
    widened = max(1.0, widening(unchanged)) if on_gpu else max(QUIET, CPU_TAIL * widening(unchanged, CPU_SHARES))
    differences = [cell.difference for cell in rough if cell.comparable]
    wide = [replace(each, deviation=widened * each.deviation) for each in differences]
    verdicts = iter(zip(wide, decide(wide, margin=margin), strict=True))
    return tuple(finished(cell, *next(verdicts)) if cell.comparable else cell for cell in rough), widened


def matched(a: Cell, b: Cell) -> list[tuple[Cell, Row, Cell, Row]]:
    """The rows of two cells to compare: same metric, unit and details."""
    others = {(row.metric, row.unit, b.details(row)): row for row in b.compared()}
    pairs = [(row, others.get((row.metric, row.unit, a.details(row)))) for row in a.compared()]
    return [(a, row, b, other) for row, other in pairs if other is not None]


def relaunched(a: Row, b: Row) -> bool:
    """Whether two rows are of the same versions on the same kind of machine, and not copies of one run."""
    same = all(getattr(a, name) == getattr(b, name) for name in VERSIONS)
    return same and getattr(a, "utc", "") != getattr(b, "utc", "")


def compared(
    a: Cell,
    row_a: Row,
    b: Cell,
    row_b: Row,
    tops: tuple[float | None, float | None],
    prices: tuple[float | None, float | None],
    *,
    on_gpu: bool,
) -> Compared:
    """A time of a cell in both runs, with the reason why it gets no verdict, if there is one."""
    bounds = bound(a, row_a), bound(b, row_b)
    paced = [device_bound(cell, row) for cell, row in ((a, row_a), (b, row_b)) if row.gpu]
    reason = HOST_SETS_PACE if False in paced else NOT_KNOWN if None in paced else ""
    if not reason and "communication" in bounds:
        reason = NOT_CALIBRATED
    known = bounds[0] if bounds[0] == bounds[1] or bounds[1] == "unknown" else bounds[1]
    return Compared(
        experiment=row_a.experiment,
        cell=a.name,
        metric=row_a.metric,
        details=", ".join(filter(None, a.details(row_a))),
        a=row_a.median or 0.0,
        b=row_b.median or 0.0,
        unit=row_a.unit,
        difference=difference(a.time(row_a, tops[0]), b.time(row_b, tops[1]), run_to_run(on_gpu=on_gpu)),
        bound="host" if "host" in bounds else known,
        reason=reason,
        same_code=same_code(*(getattr(row, "revisions", "") for row in (row_a, row_b))),
        cost_a=cost(a, row_a, prices[0]),
        cost_b=cost(b, row_b, prices[1]),
    )


def finished(cell: Compared, widened: Difference, verdict: Verdict) -> Compared:
    """A cell with its verdict, or with the reason why there is none."""
    reason = f"only a change of {widened.resolution():.0%} or more would be detected" if verdict == UNDECIDED else ""
    return replace(cell, difference=widened, verdict=verdict, reason=reason)


def differing(a: Sequence[Row], b: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """The columns of provenance in which two runs differ, with the values of each."""
    values = [{name: {str(getattr(row, name)) for row in rows} for name in STATED} for rows in (a, b)]
    return {name: (listed(a, name), listed(b, name)) for name in STATED if values[0][name] != values[1][name]}


def listed(rows: Iterable[Row], column: str) -> str:
    """The values of a column, the most frequent one first."""
    values = [value or "none" for value, _ in Counter(str(getattr(row, column)) for row in rows).most_common()]
    if column == "git_commit":
        values = list(dict.fromkeys(value[:COMMIT_CHARACTERS] for value in values))
    more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
    return ", ".join(values[:MOST_LISTED]) + more
