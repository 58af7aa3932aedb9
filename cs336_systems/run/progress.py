"""The progress of a run: cells done and planned, the current job and cell, and the time left.

A job writes one line per cell to its log (`finished_line`). The run, which may be on a different machine from its
jobs, follows these logs and reports its progress on the terminal and in `progress.log`. No torch here.
"""

import contextlib
import dataclasses
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from cs336_systems.config import CPU
from cs336_systems.experiments.base import Experiment
from cs336_systems.grids import Job
from cs336_systems.plan import Plan
from cs336_systems.run.taken import Key, Taken, key_of, read_taken

INTERVAL_S = 0.5
RECORDED, SAMPLES = Path("recorded"), Path("tests/samples/cpu/raw")
"""Folders of recorded machines, and of rows that two idle cores of a processor measured, at the smoke scale."""
FORKED_S, OTHER_S = 0.5, 1.0
"""Seconds on these cores until a forked job's first cell begins, and of a job that measures nothing."""
BEFOREHAND = 0.1
"""Share of the expected time that counts as if it had passed as recorded, so that a slow first start decides little."""
FINISHED = re.compile(r"^\[(?P<number>\d+)/\d+\] .*?: (?P<outcome>.*), (?P<seconds>[\d.]+) s$")


def describe(cell: Experiment, cells: Sequence[Experiment]) -> str:
    """The parameters in which a cell differs from its job's others, or a lone cell from the defaults; else its name."""
    shown = {}
    for parameter in dataclasses.fields(cell):
        values = {getattr(other, parameter.name) for other in cells}
        if len(values) > 1 or (len(cells) == 1 and values != {parameter.default}):
            shown[parameter.name] = getattr(cell, parameter.name)
    return " ".join(f"{key}={value}" for key, value in shown.items()) or cell.name


def finished_line(number: int, cells: int, cell: str, outcome: str, seconds: float) -> str:
    """A job's log line for a finished cell, the `number`-th of `cells`."""
    return f"[{number}/{cells}] {cell}: {outcome}, {seconds:.1f} s"


class ProgressMonitor:
    """Follows the logs of a run's jobs and reports the run's progress whenever a cell begins."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic):
        self._plan, self._clock = plan, clock
        self._log = plan.results / "progress.log"
        self._pending: list[Job] = []
        self._done_before = 0
        self._finished: dict[str, int] = {}
        self._expected: dict[str, list[float]] = {}
        self._rest = self._began = self._kept = 0.0
        self._known = False
        self._older: dict[str, int | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def follow(self, pending: Iterable[Job], others: int = 0) -> None:
        """Start to follow this run's jobs; cells of other jobs count as done if their CSV exists.

        Args:
            pending: the jobs that measure.
            others: how many jobs make tables, figures and the report from them.
        """
        self._pending = list(pending)
        if not self._pending:
            return
        measured = [job for job in self._plan.all_jobs() if job not in self._pending and self._plan.csv(job).exists()]
        self._done_before = sum(len(job.cells) for job in measured)
        self._expected = self._expect(read_taken(sources(self._plan)))
        self._rest = OTHER_S * others
        self._began = self._clock()
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
            if seen == len(job.cells):
                continue
            lines = self._lines(job)
            if lines is None:
                continue
            # A relaunched job reports again how all its cells ended.
            matches = (match for match in map(FINISHED.match, lines) if match)
            finished = list({match["number"]: match for match in matches}.values())
            self._finished[job.path] = len(finished)
            if seen is None:  # what is there at once was kept from an earlier launch, or took next to no time
                self._kept += sum(self._expected[job.path][1 : 1 + len(finished)])
            for match in finished[seen or 0 :]:
                if match["outcome"] != "ok":
                    self._say(f"{job.path}, cell {match['number']}: {match['outcome']}")
            if seen is None or len(finished) > seen:
                self._say(self._position(job, len(finished)))

    def _job_log(self, job: Job) -> Path:
        return self._plan.results / "logs" / f"{job.path}.log"

    def _written(self, job: Job) -> int | None:
        """When a job's log was last written, ns; None without a log."""
        try:
            return self._job_log(job).stat().st_mtime_ns
        except OSError:
            return None

    def _lines(self, job: Job) -> list[str] | None:
        """The lines of a job's log, or None before this run has started it: the log may be an earlier run's."""
        if self._written(job) in (None, self._older[job.path]):
            return None
        try:
            return self._job_log(job).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # removed since
            return None

    def _position(self, job: Job, finished: int) -> str:
        done = self._done_before + sum(self._finished.values())
        total = self._done_before + sum(len(pending.cells) for pending in self._pending)
        place = f"{done} of {total} cells done"
        if done < total or self._rest:
            place += f", {duration(self.seconds_left())}"
        if finished == len(job.cells):
            return f"{place} | {job.path}: done"
        cell = describe(job.cells[finished], job.cells)
        return f"{place} | {job.path}, cell {finished + 1} of {len(job.cells)}: {cell}"

    def seconds_left(self) -> float | None:
        """Estimate the seconds left when a cell begins: those expected of what is left, at this run's pace."""
        done, left = -self._kept, self._rest
        for job, seconds in self._expected.items():
            begun = 1 + self._finished[job] if job in self._finished else 0
            done, left = done + sum(seconds[:begun]), left + sum(seconds[begun:])
        beforehand = self._known and BEFOREHAND * (done + left)
        if not done + beforehand:
            return None
        return (self._clock() - self._began + beforehand) / (done + beforehand) * left

    def _expect(self, taken: Mapping[Key, Taken]) -> dict[str, list[float]]:
        """Seconds of each job's start and of its cells; unknown cells count as the mean of the known ones."""
        walls = {key: cell.wall for key, cell in taken.items() if cell.wall}
        startups = {experiment: cell.startup for (experiment, *_), cell in taken.items() if cell.startup}
        known = [walls[key] for job in self._pending for key in map(key_of, job.cells) if key in walls]
        self._known = bool(known)
        mean = sum(known) / len(known) if known else 1.0
        forked = self._plan.machine == CPU
        return {
            job.path: [
                FORKED_S if forked else startups.get(job.experiment, 0.0),
                *(walls.get(key_of(cell), mean) for cell in job.cells),
            ]
            for job in self._pending
        }

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        # If the disk is full, the terminal still shows it.
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def duration(seconds: float | None) -> str:
    """Format the time left in words."""
    if seconds is None:
        return "time left unknown"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left"


def sources(plan: Plan) -> list[Path]:
    """The folders of CSV files to estimate from, this machine's model last; for a CPU, a CPU's."""
    own = RECORDED / plan.machine / "raw"
    if plan.machine == CPU:
        return [SAMPLES, own]
    others = (path for path in sorted(RECORDED.glob("*/raw")) if path.parent.name not in (CPU, plan.machine))
    return [*others, own]
