"""Comparisons of recorded files with themselves, with planted changes, and with what must not meet them."""

import math
import random

import pytest

from cs336_systems.compare.cells import cells_of, compared_metrics
from cs336_systems.compare.comparison import HOST_SETS_PACE, NOT_CALIBRATED, compare
from cs336_systems.compare.cost import cost
from cs336_systems.compare.output import to_text
from cs336_systems.compare.results import last_run, read_results
from cs336_systems.compare.speed import FASTER, SLOWER, UNDECIDED
from cs336_systems.experiments.registry import KINDS
from tests.samples import ROOT
from tests.support.planted_runs import copy_of, scaled

JOBS = ("flash/leaderboard", "flash/tiled", "end_to_end/compiled", "end_to_end/eager-large", "training_ladder/large")


def results(folder, jobs, change=lambda row: row):
    for job in jobs:
        copy_of(job, folder, change)
    return read_results(str(folder))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return results(tmp_path_factory.mktemp("recorded"), JOBS)


def test_a_planted_change_is_found_and_nothing_else(recorded, tmp_path):
    choose = random.Random(0)

    def change(row):
        times = row.status == "ok" and row.unit == "ms" and row.n > 0
        return scaled(row, 1.05) if times and choose.random() < 0.4 else row

    compared = compare(recorded, results(tmp_path, JOBS, change))
    changed = [cell for cell in compared.cells if cell.difference.ratio == pytest.approx(1.05, abs=1e-3)]
    able = [cell for cell in changed if cell.comparable and cell.difference.resolution() < 0.05]
    assert len(able) >= 3
    assert all(cell.verdict == SLOWER for cell in able)
    assert {cell.name for cell in compared.cells if cell.verdict in (FASTER, SLOWER)} <= {cell.name for cell in changed}
    assert compared.slower_by(0.04)
    assert not compared.slower_by(0.06)


def test_versions_of_an_implementation_meet_by_its_name(tmp_path):
    def version(name):
        own = {"implementation": f"mine={name}:attention"}
        change = lambda row: row.model_copy(update=own) if row.implementation == "triton" else row  # noqa: E731
        return results(tmp_path / name, JOBS[:1], change)

    compared = compare(version("before"), version("after"))
    assert not compared.only_a
    assert any("mine=before:attention" in cell.cell for cell in compared.cells)


@pytest.mark.parametrize(("utc", "widened"), [("2026-11-24T07:00:00+00:00", True), ("", False)])
def test_intervals_are_widened_by_other_runs_of_the_same_code_alone(tmp_path, utc, widened):
    """By times that scatter twice as far as calibrated; a copy of the rows is no other run."""
    choose = random.Random(0)
    jobs = ("flash/narrow", *JOBS[1:-1])  # the leaderboard's and the ladder's long times scatter by themselves

    def noisy(row):
        row = row.model_copy(update={"utc": utc}) if utc else row
        return scaled(row, math.exp(choose.gauss(0, 0.02))) if row.status == "ok" and row.unit == "ms" else row

    compared = compare(results(tmp_path / "a", jobs), results(tmp_path / "b", jobs, noisy))
    assert (compared.widened > 1.3) == widened
    assert not widened or compared.count(FASTER) + compared.count(SLOWER) <= 1


def test_what_the_host_paces_is_never_judged(recorded, tmp_path):
    """Unchanged runs of eager bf16 steps differ by a factor of two."""
    compared = compare(recorded, results(tmp_path, JOBS, lambda row: scaled(row, 2) if row.metric == "host" else row))
    host = [cell for cell in compared.cells if cell.bound == "host"]
    assert len(host) > 5
    assert {cell.verdict for cell in host} == {UNDECIDED}
    assert {cell.reason for cell in host} == {HOST_SETS_PACE}
    assert f"  {len(host)} cannot be decided: {HOST_SETS_PACE}" in to_text(compared).splitlines()
    assert any(cell.difference.ratio == pytest.approx(2) for cell in host)


def test_instruments_show_the_bound(recorded, tmp_path):
    cells = {cell.name: cell for cell in compare(recorded, results(tmp_path, JOBS)).cells}
    flash = "flash (sequence 16384, d 64, heads 16, precision bf16, compiled_call True, rep 300): forward_backward"
    assert cells[flash].bound == "matmul"
    ladder = "training_ladder (size 2.7B, context 1024, rungs all): "
    assert cells[f"{ladder}copy_speed"].bound == "memory"
    assert {cell.bound for cell in cells.values() if cell.metric == "matmul_rate"} == {"matmul"}
    eager = "end_to_end (size large, context 128, precision bf16): "
    assert cells[f"{eager}step"].bound == "host"


def test_only_collectives_between_gpus_are_bound_by_communication(tmp_path):
    """Gloo's run on the host, whatever the GPU."""
    jobs = ("all_reduce/all-gloo-2_processes", "all_reduce/all-nccl-2_processes")
    compared = compare(results(tmp_path / "a", jobs), results(tmp_path / "b", jobs))
    reasons = {("nccl" in cell.cell, cell.bound, cell.reason) for cell in compared.cells}
    assert reasons == {(True, "communication", NOT_CALIBRATED), (False, "host", HOST_SETS_PACE)}


@pytest.mark.parametrize(
    ("column", "value"), [("seed", 1), ("gpu_count", 2), ("tf32", True), ("precision", "fp32"), ("batch_size", 3)]
)
def test_what_is_not_alike_does_not_meet(tmp_path, column, value):
    job = ("flash/leaderboard",)
    one, other = results(tmp_path / "one", job), results(tmp_path / "other", job)
    changed = [row.model_copy(update={column: value}) for row in other.rows]
    assert not set(cells_of(one.rows)) & set(cells_of(changed))
    with pytest.raises(ValueError, match="have no common cell; allowed: folders that share a cell"):
        compare(one, type(other)("other", other.raw, tuple(changed)))


def test_other_dtypes_do_not_meet(recorded):
    rows = [row for row in recorded.rows if row.experiment == "end_to_end"]
    changed = [row.model_copy(update={"value": "float32"}) if row.metric == "logits_dtype" else row for row in rows]
    assert set(cells_of(rows)) != set(cells_of(changed))


def test_what_differs_is_stated_and_what_is_on_one_side_is_named(recorded, tmp_path):
    def newer(row):
        return row.model_copy(update={"torch": "2.12.0+cu130", "revisions": "flash=0"})

    compared = compare(recorded, results(tmp_path, JOBS[:2], newer))
    assert compared.differs == {"torch": ("2.11.0+cu130", "2.12.0+cu130")}
    assert compared.same_code == {"flash": False}
    assert len(compared.only_a) == 11
    assert any(name.startswith("end_to_end (size small, context 512, precision bf16") for name in compared.only_a)


def test_tokens_have_a_price_and_an_energy(recorded, tmp_path):
    compared = compare(recorded, results(tmp_path, JOBS), price_a=3.6, price_b=1.8)
    step = next(cell for cell in compared.cells if cell.name.endswith(": fp32: step"))
    tokens = 4 * 1024
    assert step.cost_a.price == pytest.approx(step.a / 1e3 / tokens * 1e6 * 3.6 / 3600)
    assert step.cost_b.price == pytest.approx(step.cost_a.price / 2)
    assert step.cost_a.by_counter
    (energy,) = [row.mean for row in recorded.rows if row.metric == "energy" and row.rung == "fp32"]
    assert step.cost_a.joules == pytest.approx(energy / tokens)
    by_power = next(cell for cell in compared.cells if cell.experiment == "end_to_end" and cell.metric == "step")
    assert not by_power.cost_a.by_counter
    assert 0 < by_power.cost_a.joules < 700 * by_power.a / 1e3 / (4 * 512) * 1.01


def test_every_gpu_of_a_step_is_paid_for(tmp_path):
    (cell, *_) = cells_of(results(tmp_path, ["training_ladder/together"]).rows).values()
    step, energy = (next(row for row in cell.rows if row.metric == metric) for metric in ("step", "energy"))
    assert step.gpu_count == 2
    tokens, paid = 2 * 4 * 1024, cost(cell, step, 3.6)
    assert paid.price == pytest.approx(2 * 3.6 / 3600 * step.median / 1e3 / tokens * 1e6)
    assert paid.joules == pytest.approx(2 * energy.median / tokens)  # the counter is of one GPU


def test_times_of_each_experiment_are_compared():
    """But for those that measure none."""
    without = {"block_memory", "memory_profile", "accumulation", "autocast_dtypes"}
    assert {name for name, kind in KINDS.items() if not compared_metrics(kind)} == without
    for kind in KINDS.values():
        assert compared_metrics(kind) <= set(kind.metrics)


def test_of_several_runs_of_the_card_the_last_is_compared():
    cards = sorted((ROOT / "recorded/nvidia-h200/raw/card").glob("*.csv"))
    assert last_run("card", cards) == cards[-1:]
