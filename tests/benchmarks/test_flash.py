"""The experiment on attention implementations."""

import re
from contextlib import nullcontext
from pkgutil import resolve_name

import pytest
import torch

from cs336_systems.benchmarks import flash
from cs336_systems.benchmarks.comparison import new_inputs
from cs336_systems.benchmarks.comparison.device_clock import take_persisting_l2
from cs336_systems.benchmarks.comparison.originals import restore
from cs336_systems.experiments.contender import names_of
from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.memory import Unavailable
from tests.support import cheats
from tests.support.cheats import CHEATS, IN_FP32, ON_GPU


def test_what_needs_a_gpu_is_skipped_on_a_cpu_with_a_reason(launch):
    cells = launch("flash", "--sequence", "16", "--implementation", "triton", "flex_autotuned", "flash_attention_4")
    assert {metrics["cell"].status for metrics in cells} == {"skipped"}
    assert all("CUDA device" in metrics["cell"].message for metrics in cells)


@pytest.mark.parametrize("implementation", ["tiled", "plain", "sdpa_flash"])
def test_flash_measures_time_on_a_cpu(implementation):
    cell = Flash(sequence=40, d=16, implementation=implementation)
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cpu"))}
    both, parts = metrics["forward_backward"], [metrics[phase] for phase in ("forward", "backward")]
    assert {part.n for part in (both, *parts)} == {flash.CPU_CALLS}
    assert min(part.p20 for part in parts) > 0
    assert both.p20 > max(part.p20 for part in parts)
    assert metrics["peak_memory"].status == "skipped"


OWN = "tests.support.own_attention"


@pytest.mark.parametrize("path", ["right", "Right"])
def test_a_users_own_is_measured_as_the_others(launch, path):
    text = f"mine={OWN}:{path}"
    shape = ("--sequence", "40", "--d", "16", "--heads", "2", "--batch-size", "2")
    (metrics,) = launch("flash", *shape, "--implementation", text)
    assert {metrics[name].n for name in ("forward", "backward", "forward_backward")} == {flash.CPU_CALLS}
    assert {row.implementation for row in metrics.values()} == {text}


def test_an_unknown_implementation_is_one_sentence(command, capsys):
    with pytest.raises(SystemExit) as status:
        command("flash", "--implementation", "tritn")
    assert status.value.code == 2
    names = ", ".join(names_of(Flash.contenders))
    assert capsys.readouterr().err.startswith(f"flash: implementation is 'tritn'; allowed: {names}, or your own")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (
            "WrongKeys",
            "skipped",
            r"not timed: its dk has a relative error of 0\.\d\d? \(tolerance \S+\) against causal .*, "
            r"largest in head 3, rows 64 to 127",
        ),
        ("raising", "skipped", "not timed: it raises ValueError: cannot do 4 heads"),
        ("ending", "skipped", "not timed: it raises SystemExit: 0"),
        ("unsupported", "skipped", "not timed: it has no mask"),
        ("transposed", "skipped", r"not timed: its output is of shape \[4, 16, 192\], but q has shape \[4, 192, 16\]"),
        ("too_much", "oom", "CUDA out of memory.*"),
    ],
)
def test_a_users_own_that_is_wrong_has_a_reason_instead(launch, path, status, message):
    shape = ("--sequence", "192", "--d", "16", "--heads", "2", "--batch-size", "2")
    wrong, ours = launch("flash", *shape, "--implementation", f"mine={OWN}:{path}", "tiled")
    assert wrong["cell"].status == status
    assert re.fullmatch(message, wrong["cell"].message)
    assert "forward" in ours, "the comparison goes on without it"


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["triton", "plain", f"mine={OWN}:Right"])
def test_flash_measures_time_and_memory_on_a_gpu(implementation):
    cell = Flash(sequence=256, d=64, implementation=implementation, rep=5)
    torch._C._cuda_clearCublasWorkspaces()  # As before the first cell of a job.
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cuda"))}
    assert all(metrics[name].mean > 0 for name in ("forward", "backward", "forward_backward", "graph"))
    assert 0.1 < metrics["peak_memory"].mean < 1, "MiB: inputs, gradients, at most a few score matrices"


@pytest.mark.gpu
def test_a_users_own_that_waits_for_the_device_has_no_replay():
    for path in ("waiting", "right"):
        cell = Flash(sequence=256, heads=2, implementation=f"mine={OWN}:{path}", rep=5)
        metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cuda"))}
        assert metrics["forward_backward"].mean > 0
        assert metrics["graph"].status == ("skipped" if path == "waiting" else "ok")


@pytest.fixture
def as_before():
    """Puts back what a cheat replaces, and forgets what it has kept."""
    cheats.KEPT.clear()
    cheats.CALLS[0] = 0
    yield
    restore()


@pytest.mark.parametrize(
    ("cheat", "precision", "why"),
    [(name, "bf16", why) for name, why in CHEATS.items()] + [(name, "fp32", why) for name, why in IN_FP32.items()],
)
def test_what_does_less_when_it_is_timed_gets_no_time(cheat, precision, why, as_before):
    cell = Flash(sequence=256, d=32, heads=4, precision=precision, implementation=f"mine=tests.support.cheats:{cheat}")
    with pytest.raises(Unavailable, match=f"^not timed: {why}"):
        flash.measure(cell, torch.device("cpu"))


@pytest.mark.parametrize(
    "path",
    [
        *("time.perf_counter", "torch.cuda.synchronize", "torch.cuda.Event", "torch.cuda.Event.elapsed_time"),
        *("triton.testing.do_bench", "torch.distributed.barrier", "torch.allclose", "torch.Tensor.norm"),
    ],
)
def test_what_measures_or_compares_is_named_and_restored(path):
    owner, _, name = path.rpartition(".")
    pytest.importorskip(path.partition(".")[0])
    owner = resolve_name(owner)
    before = getattr(owner, name)
    restore()
    setattr(owner, name, lambda *_, **__: True)
    assert restore() == [f"it has replaced {path}"]
    assert getattr(owner, name) is before


@pytest.mark.gpu
@pytest.mark.parametrize("cheat", ON_GPU)
def test_what_does_less_when_it_is_timed_gets_no_time_on_a_gpu(cheat, as_before):
    length = 2048 if cheat == "skipped_in_graphs" else 8192  # Others are not captured.
    cell = Flash(sequence=length, heads=4, rep=5, implementation=f"mine=tests.support.cheats:{cheat}")
    stream = torch.cuda.current_stream()
    try:
        with pytest.raises(Unavailable, match=f"^not timed: {ON_GPU[cheat]}"):
            flash.measure(cell, torch.device("cuda"))
    finally:
        torch.cuda.set_stream(stream)
    assert take_persisting_l2() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["full", "joined_stream"])
@pytest.mark.parametrize("length", [256, 8192])
def test_what_works_as_it_says_gets_its_time_on_a_gpu(path, length):
    cell = Flash(sequence=length, heads=4, rep=5, implementation=f"mine=tests.support.cheats:{path}")
    assert {row.metric for row in flash.measure(cell, torch.device("cuda"))} >= {"forward", "backward"}


@pytest.mark.parametrize(("path", "rounding"), [("in_tf32", ["TF32"]), ("right", [])])
def test_fp32_as_exact_as_tf32_is_timed_and_marked(path, rounding):
    cell = Flash(
        sequence=256, d=32, heads=2, precision="fp32", implementation=f"mine=tests.support.own_attention:{path}"
    )
    rows = flash.measure(cell, torch.device("cpu"))
    assert {row.metric for row in rows} >= {"forward", "backward"}
    assert [row.value for row in rows if row.metric == "rounding"] == rounding


@pytest.mark.parametrize(("timed", "holds"), [([1.0, 1.9, 2.1, 9.0], 2.1), ([1.0, 1.1, 1.2, 1.3], None)])
def test_a_machine_that_slows_down_is_timed_again(timed, holds):
    times, device = iter(timed), torch.device("cpu")

    def check(seconds):
        new_inputs._require_time("forward", seconds, [4.5, 3.0, 3.5], device)

    with nullcontext() if holds else pytest.raises(Unavailable, match=r"^not timed: forward was timed at 1.3e\+03 ms"):
        assert new_inputs.times_that_hold(lambda: next(times), check) == holds
    assert len(list(times)) == (1 if holds else 0)
