"""Forecasts of a dry run, checked against the recorded machines' own cells."""

import csv
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.fit.gpus import gpu_of_label
from cs336_systems.plan import make_plan
from cs336_systems.record.measurement import WALL
from cs336_systems.run.forecast import (
    FITS,
    HEADER,
    MORE_GPUS,
    OUTCOMES,
    ROWS,
    TOO_LARGE,
    expected,
    forecast,
    memory_outcome,
    seconds_of,
    table,
)
from cs336_systems.run.taken import Taken, key_of, read_taken
from tests.samples import ROOT

OTHER = Path("recorded", "nvidia-h100-80gb-hbm3", "raw")


def plan_for(machine):
    return make_plan(yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8")) | {"machine": machine})


def rows_of(machine, experiments=tuple(EXPERIMENTS)):
    plan = plan_for(machine)
    jobs = [job for job in plan.all_jobs() if job.experiment in experiments]
    rows = [dict(zip(HEADER, row, strict=True)) for row in table(plan, gpu_of_label(plan.machine), jobs)]
    return {row["experiment"]: row for row in rows}, Counter(job.experiment for job in jobs for _ in job.cells)


def test_on_the_recorded_gpu_times_are_those_recorded():
    plan = plan_for("H200")
    jobs = list(plan.jobs["attention"].values())
    recorded = read_taken([ROWS])
    seconds = [each.seconds for each in expected(plan, gpu_of_label(plan.machine), jobs)]
    assert seconds == [pytest.approx(recorded[key_of(cell)].wall) for job in jobs for cell in job.cells]


def test_another_recorded_gpu_took_about_as_long_as_expected_and_held_what_fits():
    plan = plan_for("H100 80GB HBM3")
    gpu = gpu_of_label(plan.machine)
    guessed = took = 0.0
    there, here = read_taken([ROWS]), read_taken([OTHER])
    for jobs in plan.jobs.values():
        for cell in (cell for job in jobs.values() for cell in job.cells):
            measured, known = here.get(key_of(cell), Taken()), there.get(key_of(cell), Taken())
            if measured.peak:
                assert memory_outcome(cell, gpu, known)[0] != TOO_LARGE, cell
            if measured.wall and known.wall and memory_outcome(cell, gpu, known)[0] == FITS:
                guessed, took = guessed + seconds_of(cell, gpu, known), took + measured.wall
    assert took > 300
    assert guessed / took == pytest.approx(1, abs=0.4)


def test_every_planned_cell_is_counted_once_and_what_is_too_large_is_named():
    rows, planned = rows_of("2 x RTX 4090")
    for name, count in (*planned.items(), ("total", planned.total())):
        assert sum(int(rows[name][outcome] or 0) for outcome in OUTCOMES) == count, name
    assert "10B: 4 of 4 (from 104 GB)" in rows["end_to_end"]["cells that are too large"]
    assert rows["attention"]["cells that are too large"] == "sequence 16384: 4 of 8 (from 35 GB)"
    assert rows["all_reduce"][MORE_GPUS] == "8"  # the launches of four and of six processes over NCCL
    assert int(rows["total"]["minutes"].removeprefix("≥ ")) > 30


def test_what_was_never_timed_makes_a_lower_bound_and_calls_within_a_budget_take_no_longer():
    plan = plan_for("RTX 4090")
    gpu = gpu_of_label(plan.machine)
    cell = plan.jobs["flash"]["training"].cells[0]
    assert seconds_of(cell, gpu, Taken()) is None
    assert seconds_of(cell, gpu, Taken(wall=2.0, timed=[(100, 1e-3)])) == 2.0
    assert seconds_of(cell, gpu, Taken(wall=2.0, timed=[(1, 1.0)])) == pytest.approx(1 + 989 / 165.2)


def test_the_text_of_listed_and_unlisted_gpus():
    text = forecast(plan := plan_for("RTX 3070"), plan.jobs["fsdp"].values())
    assert text.startswith(
        "1 x NVIDIA GeForce RTX 3070, 8.6 GB: number of cells that fit into its memory\n\nexperiment  fit"
    )
    assert "2.7B: 2 of 2 (from 35 GB), 10B: 2 of 2 (from 62 GB)\ntotal" in text
    assert forecast(plan_for("NVIDIA A10G"), []).startswith("No data sheet is listed for nvidia-a10g, so it is unknown")


def test_a_cpu_gets_a_sentence_with_the_time_that_its_cells_took():
    plan = plan_for("cpu")
    jobs = list(plan.all_jobs())
    took = re.fullmatch(r"CPU: (\d+) cells, about (\d+) min on two idle cores, .*", forecast(plan, jobs))
    assert int(took[1]) == sum(len(job.cells) for job in jobs)
    walls = sum(map(wall, (ROOT / "tests/samples/cpu/raw").glob("*/*.csv")))
    assert float(took[2]) == pytest.approx(walls / 60, abs=1)
    assert "at least 1 min" in forecast(plan_for("cpu"), [replace(jobs[0], cells=(EndToEnd(context=3),))])


def wall(path):
    with path.open(newline="") as file:
        return sum(float(row["mean"]) for row in csv.DictReader(file) if row["metric"] == WALL)
