"""The progress of a run: cells done out of those planned, the current job and cell, and the time left.

A job writes one line per cell to its log (`finished_line`). The run, which may be on a different machine from its
jobs, follows these logs and reports its progress on the terminal and in `progress.log`. No torch here.
"""

import contextlib
import csv
import dataclasses
import itertools
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from cs336_systems.config import CPU
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.grids import Job
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import parameters

INTERVAL_S = 0.5
SAMPLES = Path("tests/samples/cpu/raw")
"""Rows that two cores of a processor measured, at the smoke scale."""
FINISHED = re.compile(r"^\[(?P<number>\d+)/\d+\] .*?: (?P<outcome>.*), (?P<seconds>[\d.]+) s$")

Walls = dict[tuple[str, ...], float]
"""Seconds that cells took, by experiment and parameters as text; by experiment alone, what starts a job."""


def describe(cell: Experiment, cells: Sequence[Experiment]) -> str:
    """The parameters in which a cell differs from the others in its job; for a lone cell, from the defaults."""
    shown = {}
    for parameter in dataclasses.fields(cell):
        values = {getattr(other, parameter.name) for other in cells}
        if len(values) > 1 or (len(cells) == 1 and values != {parameter.default}):
            shown[parameter.name] = getattr(cell, parameter.name)
    return " ".join(f"{key}={value}" for key, value in shown.items())


def finished_line(number: int, cells: int, cell: str, outcome: str, seconds: float) -> str:
    """A job's log line for a finished cell, the `number`-th of `cells`."""
    return f"[{number}/{cells}] {cell}: {outcome}, {seconds:.1f} s"


class ProgressMonitor:
    """Follows the logs of a run's jobs and reports the run's progress whenever a cell begins."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._log = plan.results / "progress.log"
        self._pending: list[Job] = []
        self._done_before = 0
        self._finished: dict[str, list[float]] = {}
        self._walls: Walls = {}
        self._older: dict[str, int | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def follow(self, pending: Iterable[Job], recorded: Path = Path("recorded")) -> None:
        """Start to follow this run's jobs; cells of other jobs count as done if their CSV exists."""
        self._pending = list(pending)
        if not self._pending:
            return
        measured = [job for job in self._plan.all_jobs() if job not in self._pending and self._plan.csv(job).exists()]
        self._done_before = sum(len(job.cells) for job in measured)
        self._walls = read_walls(sources(self._plan, recorded))
        self._older = {job.path: self._written(job) for job in self._pending}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("", encoding="utf-8")
        self._thread.start()

    def finish(self) -> None:
        """Stop after one last look."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Report what is new in the logs."""
        for job in self._pending:
            seen = self._finished.get(job.path)
            if seen is not None and len(seen) == len(job.cells):
                continue
            lines = self._lines(job)
            if lines is None:
                continue
            # A job that is launched again says of all its cells once more how they ended.
            matches = (match for match in map(FINISHED.match, lines) if match)
            finished = list({match["number"]: match for match in matches}.values())
            self._finished[job.path] = [float(match["seconds"]) for match in finished]
            for match in finished[len(seen or []) :]:
                if match["outcome"] != "ok":
                    self._say(f"{job.path}, cell {match['number']}: {match['outcome']}")
            if seen is None or len(finished) > len(seen):
                self._say(self._position(job, len(finished)))

    def _job_log(self, job: Job) -> Path:
        return self._plan.results / "logs" / f"{job.path}.log"

    def _written(self, job: Job) -> int | None:
        """When a job's log was written last, ns; None without one."""
        try:
            return self._job_log(job).stat().st_mtime_ns
        except OSError:
            return None

    def _lines(self, job: Job) -> list[str] | None:
        """The lines of a job's log, or None before this run has begun it: the log may be an earlier run's."""
        if self._written(job) in (None, self._older[job.path]):
            return None
        try:
            return self._job_log(job).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # removed since
            return None

    def _position(self, job: Job, finished: int) -> str:
        done = self._done_before + sum(map(len, self._finished.values()))
        total = self._done_before + sum(len(pending.cells) for pending in self._pending)
        place = f"{done} of {total} cells done"
        if done < total:
            place += f", {duration(self.seconds_left())}"
        if finished == len(job.cells):
            return f"{place} | {job.path}: done"
        cell = describe(job.cells[finished], job.cells)
        return f"{place} | {job.path}, cell {finished + 1} of {len(job.cells)}: {cell}"

    def seconds_left(self) -> float | None:
        """Estimate the seconds left from recorded times, scaled to this run; unknown cells count as its mean.

        A job that has not begun also takes what starts it, but on a CPU, where one process is forked for all.
        """
        taken = expected = starts = 0.0
        spent: list[float] = []
        left: list[float | None] = []
        for job in self._pending:
            seconds = self._finished.get(job.path, [])
            known = [self._walls.get(wall_key(cell)) for cell in job.cells]
            spent += seconds
            left += known[len(seconds) :]
            if job.path not in self._finished and self._plan.machine != CPU:
                starts += self._walls.get((job.experiment,), 0.0)
            for here, there in zip(seconds, known, strict=False):
                if there is not None:
                    taken, expected = taken + here, expected + there
        mean = sum(spent) / len(spent) if spent else None
        if mean is None and None in left:
            return None
        pace = taken / expected if expected else 1.0
        return pace * starts + sum(mean or 0.0 if wall is None else pace * wall for wall in left)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        # Where the disk is full, the terminal has it all the same.
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def duration(seconds: float | None) -> str:
    """Format the time left in words."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left"


def sources(plan: Plan, recorded: Path) -> list[Path]:
    """The folders of CSV files to estimate from, this machine's model last; for a processor, those of one."""
    own = recorded / plan.machine / "raw"
    if plan.machine == CPU:
        return [SAMPLES, own]
    others = (path for path in sorted(recorded.glob("*/raw")) if path.parent.name not in (CPU, plan.machine))
    return [*others, own]


def read_walls(folders: Iterable[Path]) -> Walls:
    """Read how long cells took on the machines of some folders of CSV files, later folders first.

    An experiment's name alone is the key of how long its jobs took to start.
    """
    walls: Walls = {}
    for raw, (name, experiment) in itertools.product(folders, EXPERIMENTS.items()):
        older = {key: str(value) for key, value in experiment.added_later.items()}
        for path in sorted((raw / name).glob("*.csv")):
            # A file that is not sound is complained of where the report is made; here it only says less.
            unsound = contextlib.suppress(KeyError, TypeError, ValueError, csv.Error)
            with unsound, path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if row["metric"] == WALL:
                        values = older | row
                        walls[(name, *(values[key] for key in parameters(experiment)))] = float(row["mean"])
                        walls[(name,)] = float(row["startup_seconds"])
    return walls


def wall_key(cell: Experiment) -> tuple[str, ...]:
    """The key of a cell in `Walls`."""
    return (cell.name, *(str(getattr(cell, name)) for name in parameters(type(cell))))
