"""Progress of a run, as it is reported."""

import os

import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.grids import Job
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import WALL, summarize
from cs336_systems.record.rows import make_row, write_job
from cs336_systems.run.progress import ProgressMonitor, describe, duration, finished_line, sources
from cs336_systems.run.taken import key_of, read_taken
from tests.samples import H200, provenance

CELLS = tuple(Accumulation(additions=number) for number in (1, 2, 3))


def job(name, cells=CELLS):
    return Job(experiment="accumulation", name=name, grid="all", cells=cells, arguments="")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Two jobs of three cells and one of one cell, on a GPU; results lie in the temporary folder."""
    monkeypatch.chdir(tmp_path)
    jobs = {name: job(name, cells) for name, cells in (("a", CELLS), ("b", CELLS), ("c", CELLS[:1]))}
    return Plan(
        machine="nvidia-l4",
        gpus=1,
        recorded=False,
        scale="smoke",
        jobs={"accumulation": jobs},
        on_request={},
        traced={"training_step": job("trace")},
    )


@pytest.fixture
def follow(plan, capsys):
    """A monitor of the named jobs that looks on request, at a time by its clock, with what it says."""

    def start(*names, others=0):
        clock = [0.0]
        monitor = ProgressMonitor(plan, lambda: clock[0])
        monitor._thread.run = lambda: None  # looks are the test's
        monitor.follow([plan.jobs["accumulation"][name] for name in names], others)

        def look(seconds=0.0):
            clock[0] = seconds
            monitor.look()
            return capsys.readouterr().err.splitlines()

        return look

    return start


def write_log(plan, name, *outcomes):
    log = plan.results / "logs" / "accumulation" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [finished_line(i, 3, f"additions={i}", outcome, 2.0) for i, outcome in enumerate(outcomes, start=1)]
    log.write_text("\n".join(["a warning: of some library, 3.0 s ago", *lines]) + "\n")


def test_cells_are_counted_over_the_whole_run(plan, follow):
    write_job(plan.csv(job("c")), Accumulation, [])  # measured by an earlier run
    look = follow("a", "b")
    assert look() == []
    write_log(plan, "a")
    assert look() == ["1 of 7 cells done, time left unknown | accumulation/a, cell 1 of 3: additions=1"]
    write_log(plan, "a", "ok", "ok")
    assert look(4) == ["3 of 7 cells done, about 8 s left | accumulation/a, cell 3 of 3: additions=3"]
    assert look() == []
    write_log(plan, "a", "ok", "ok", "oom: CUDA out of memory. Tried, in vain, 3 GiB")
    assert look(6) == [
        "accumulation/a, cell 3: oom: CUDA out of memory. Tried, in vain, 3 GiB",
        "4 of 7 cells done, about 6 s left | accumulation/a: done",
    ]
    write_log(plan, "b", "ok", "ok", "ok")
    assert look() == ["7 of 7 cells done | accumulation/b: done"]
    log = (plan.results / "progress.log").read_text().splitlines()
    assert [line[20:] for line in log][-1] == "7 of 7 cells done | accumulation/b: done"
    assert len(log) == 5


def test_cells_that_a_second_launch_names_again_are_counted_once(plan, follow):
    look = follow("a")
    write_log(plan, "a")
    look()
    write_log(plan, "a", "ok")
    look(1)
    log = plan.results / "logs/accumulation/a.log"
    log.write_text(log.read_text() + "".join(finished_line(i, 3, f"additions={i}", "ok", 2.0) + "\n" for i in (1, 2)))
    assert look(4) == ["2 of 3 cells done, about 2 s left | accumulation/a, cell 3 of 3: additions=3"]


def test_on_a_full_disk_progress_is_still_told(plan, follow):
    look = follow("a")
    log = plan.results / "progress.log"
    log.unlink()
    log.mkdir()  # nothing can be written there either
    write_log(plan, "a")
    assert len(look()) == 1


def test_a_log_of_an_earlier_run_does_not_count(plan, follow):
    write_log(plan, "a", "ok", "ok", "ok")
    look = follow("a")
    assert look() == []
    write_log(plan, "a", "ok")
    os.utime(plan.results / "logs/accumulation/a.log", (0, 0))  # the clock of another host
    assert look(2) == ["1 of 3 cells done, time left unknown | accumulation/a, cell 2 of 3: additions=2"]


def record(tmp_path, startup):
    """Cells of 10, 20 and 30 s on another GPU, whose jobs took `startup` seconds to start."""
    origin = provenance(**H200, startup_seconds=startup)
    rows = [make_row(cell, summarize(WALL, "s", [10.0 * cell.additions]), origin) for cell in CELLS]
    write_job(tmp_path / "recorded/nvidia-h200/raw/accumulation/x.csv", Accumulation, rows)


def test_the_time_left_is_what_was_recorded_at_the_pace_of_this_run(plan, follow, tmp_path):
    """This run takes 2 s for the first cell, a fifth; as if 6 s, a tenth of all, had passed before."""
    record(tmp_path, startup=0.0)
    look = follow("a")
    write_log(plan, "a")
    assert look() == ["0 of 3 cells done, about 60 s left | accumulation/a, cell 1 of 3: additions=1"]
    write_log(plan, "a", "ok")
    left = round((2 + 6) / (10 + 6) * 50)
    assert look(2) == [f"1 of 3 cells done, about {left} s left | accumulation/a, cell 2 of 3: additions=2"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "time left unknown"), (0.2, "about 1 s left"), (89, "about 89 s left"), (150, "about 2 min left")],
)
def test_durations_are_words(seconds, words):
    assert duration(seconds) == words


def test_a_cell_is_described_by_what_sets_it_apart():
    cells = [Accumulation(additions=1, cast=cast) for cast in (False, True)]
    assert describe(cells[1], cells) == "cast=True"
    assert describe(cells[0], cells[:1]) == "additions=1"


def test_starts_of_jobs_and_the_report_take_time_as_well(plan, follow, tmp_path):
    record(tmp_path, startup=6.0)
    look = follow("a", "b", others=7)
    write_log(plan, "a")
    assert look(6) == ["0 of 6 cells done, about 2 min left | accumulation/a, cell 1 of 3: additions=1"]
    write_log(plan, "a", "ok", "ok", "ok")
    write_log(plan, "b")
    look(72)
    write_log(plan, "b", "ok", "ok", "ok")
    (last,) = look(132)
    assert last == "6 of 6 cells done, about 7 s left | accumulation/b: done"


def test_cells_that_an_earlier_launch_has_kept_say_nothing_of_the_pace(plan, follow, tmp_path):
    record(tmp_path, startup=0.0)
    look = follow("a")
    write_log(plan, "a", "ok", "ok")
    assert look(0.5) == ["2 of 3 cells done, about 35 s left | accumulation/a, cell 3 of 3: additions=3"]


def test_of_several_recorded_gpus_each_cell_counts_and_the_own_model_wins(plan, tmp_path):
    for machine, gpu, seconds, cells in (
        ("nvidia-h200", "NVIDIA H200", 1.0, CELLS),
        ("nvidia-l4", "NVIDIA L4", 5.0, CELLS[:1]),
        ("nvidia-z", "NVIDIA Z", 2.0, CELLS[1:2]),
    ):
        rows = [make_row(cell, summarize(WALL, "s", [seconds]), provenance(**H200 | {"gpu": gpu})) for cell in cells]
        write_job(tmp_path / f"recorded/{machine}/raw/accumulation/x.csv", Accumulation, rows)
    taken = read_taken(sources(plan))
    assert [taken[key_of(cell)].wall for cell in CELLS] == [5.0, 2.0, 1.0]
