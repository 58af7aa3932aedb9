"""Revisions: which ones rows carry, and when a row is current."""

import sys

import pytest
import torch

from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.model import build_model
from cs336_systems.plan import make_plan
from cs336_systems.record import revisions
from cs336_systems.record.revisions import as_text, contenders_of, is_current, read_lock, revisions_of, same_code
from cs336_systems.sizes import parse_size
from scripts.revisions.__main__ import instrument_of
from tests.samples import config

OWN = "def attend(q, k, v, is_causal):\n    return {}\n"


def of(experiment, **parameters):
    cell = make_cell(EXPERIMENTS[experiment], parameters)
    return revisions_of(cell, contenders_of(cell))


@pytest.fixture
def raised(monkeypatch):
    """A function that raises the revision of a unit, as `bump` does."""

    def bump(name):
        lock = read_lock()
        later = lock | {name: lock[name]._replace(revision=lock[name].revision + 1)}
        monkeypatch.setattr(revisions, "read_lock", lambda: later)
        for cached in (revisions.present, is_current):
            cached.cache_clear()

    yield bump
    for cached in (revisions.present, is_current):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("experiment", "parameters", "contender", "others"),
    [
        ("flash", {"implementation": "triton"}, "flash/triton", {"flash_kernels": True}),
        ("flash", {"implementation": "sdpa_flash"}, "flash/sdpa_flash", {"flash_kernels": False, "timing": True}),
        ("data_parallel", {}, "data_parallel/bucketed", {"fsdp/fsdp": False, "comparison": True}),
    ],
)
def test_rows_carry_experiment_contenders_and_what_these_use(experiment, parameters, contender, others):
    carried = of(experiment, **parameters)
    assert {experiment, contender, "runner"} <= carried.keys()
    assert {name: name in carried for name in others} == others


@pytest.mark.parametrize("attention", ["plain", "sdpa", "flash"])
def test_only_cells_with_our_attention_run_its_kernels(attention):
    called = set()
    model = build_model(
        "cs336_systems.model:TransformerLM",
        parse_size("nano"),
        vocab_size=16,
        context_length=8,
        attention=attention,
        device=torch.device("cpu"),
    )
    sys.setprofile(lambda frame, *_: called.add(frame.f_globals.get("__name__") or ""))
    try:
        model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    finally:
        sys.setprofile(None)
    instruments = set(map(instrument_of, called))
    assert "model" in instruments
    assert ("flash_kernels" in instruments) == ("flash_kernels" in of("end_to_end", attention=attention))


def test_a_raised_revision_makes_its_own_rows_and_jobs_stale(raised):
    def stale():
        plan = make_plan(config(machine="1 x NVIDIA H200"))
        return {job.path for job in plan.all_jobs() if job.revisions != before[job.path]}

    before = {job.path: job.revisions for job in make_plan(config(machine="1 x NVIDIA H200")).all_jobs()}
    rows = {name: as_text(of("flash", implementation=name)) for name in ("triton", "tiled")}
    assert all(map(is_current, rows.values()))
    raised("flash/triton")
    assert {name: is_current(text) for name, text in rows.items()} == {"triton": False, "tiled": True}
    assert stale()
    assert all(path.startswith("flash/") for path in stale())
    raised("checkpointing")
    assert {path for path in stale() if not path.startswith("flash/")} == {"checkpointing/all"}


def test_ones_own_code_counts_by_its_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "attention_of_mine.py"
    file.write_text(OWN.format("q"))
    text = as_text(of("flash", implementation="mine=attention_of_mine:attend"))
    assert is_current(text)
    file.write_text(OWN.format("k"))
    for cached in (revisions.present, is_current):
        cached.cache_clear()
    assert is_current(text) is False
    assert is_current("flash=1 module_that_is_not_here:attend=0123456789ab") is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("flash=1 timing=1", "flash=1 timing=1", True),
        ("flash=1 timing=1", "flash=1 timing=1 model=1", True),  # declared later
        ("flash=1 timing=1", "flash=1 timing=1 model=2", False),
        ("flash=1 timing=1", "flash=1 timing=2", False),
        ("flash=1 m:attend=0123", "flash=1 m:attend=4567", False),
        ("0123456789ab", "flash=1", False),
        ("", "flash=1", False),
    ],
)
def test_a_unit_that_was_declared_later_is_unchanged_at_its_first_revision(a, b, same):
    assert same_code(a, b) == same_code(b, a) == same
