"""Sentences on fully sharded training: its step beside others, what it hides, what it saves, and who waits."""

import pandas
import pytest

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.record import make_row
from cs336_systems.sizes import SIZES
from scripts.answers import fsdp, fsdp_accounting
from scripts.rendering.markup import significant
from scripts.views.data import frame
from tests.prose import CPU, EVEN, GPU, NANO, UNEVEN, prose, table, took, training


def trained(*cells, origin=GPU, **setting):
    """A table of steps: of each contender, and of the kinds of its communication."""
    return training(FullyShardedTraining, ("wrapper", "kind"), cells, origin, **setting)


def steps(*cells, origin=GPU, **setting):
    """The section on steps."""
    return prose("fsdp", fsdp.answers({"fsdp": trained(*cells, origin=origin, **setting)}), origin)


def test_ours_beside_fully_shard():
    # fully_shard takes 100 ms and 1 GiB in every cell.
    theirs = took(100.0, peak_memory=1024.0)
    ours = [took(80.0, peak_memory=512.0), took(75.0, peak_memory=256.0)]
    one, both = (steps(*({"fsdp": each, "fully_shard": theirs} for each in cells)) for cells in (ours[:1], ours))
    against = "Against _fully_shard_, _our FSDP at its best_ is faster"
    assert f"{against}, 1.25× as fast. Its peak memory, _outside_ included, is 0.50× that of _fully_shard_." in one
    assert f"{against} in all 2 cells: 1.25× to 1.33× as fast" in both
    assert "is 0.25× to 0.50× that of _fully_shard_." in both
    assert "whole weights_" not in both
    assert "Its peak memory" not in steps({"fsdp": took(80.0), "fully_shard": took(100.0)})


def test_ours_beside_whole_weights():
    # The faster of ours takes 120 ms, of theirs 100 and 80; 1 GiB against 2 and 4, of which 3 outside of the allocator.
    first = {"fsdp": took(130.0), "fsdp_blocks": took(120.0, peak_memory=1024.0), "sharded_optimizer": took(110.0)}
    first["peer_memory"] = took(100.0, peak_memory=2048.0)
    second = first | {"sharded_optimizer": took(80.0, peak_memory=1024.0, outside_memory=3072.0)}
    text = steps(first, second)
    assert (
        "Against _the faster with whole weights_, _our FSDP at its best_ is not faster in any of the 2 cells." in text
    )
    assert "It is slower by 20.0 ms to 40.0 ms" in text
    assert "is 0.25× to 0.50× that of _the faster with whole weights_." in text


@pytest.mark.parametrize(
    ("precision", "step", "why"),
    [
        ("fp32", 110.0, ""),
        ("fp32", 90.0, "; where samples scatter, it may come out below zero."),
        ("bf16", 90.0, "; where samples scatter, or autocast's casts are spared, it may come out below zero."),
    ],
)
def test_a_step_that_is_shorter_than_the_floors(precision, step, why):
    text = steps({"none": took(100.0, optimizer=5.0), "fsdp": took(step, optimizer=5.0)}, precision=precision)
    assert f"since a sharded one has less to do{why or '.'}" in text
    assert ("In bf16, where weights are whole" in text) == (precision == "bf16")


@pytest.mark.parametrize(
    ("apart", "rounds", "sentences"),
    [
        (EVEN, 1, ["In 1 round each contender", "percentile of 2 steps; phases"]),
        (UNEVEN, 1, ["percentile of 2 steps (\\* more than 5.0 % of the median apart); phases"]),
        (EVEN * 2, 2, ["In 2 rounds each contender"]),
    ],
)
def test_rounds_and_marks(apart, rounds, sentences):
    text = steps({"fsdp": took(100.0, apart)}, rounds=rounds)
    for sentence in sentences:
        assert sentence in text


def test_memory_outside_of_the_allocator():
    outside = "; _outside_: device memory beyond the allocator's and the floor's"
    assert outside in steps({"fsdp": took(100.0)})
    assert outside not in steps({"fsdp": took(100.0)}, origin=CPU)


HALF = {"forward_gathers": 10.0, "forward_hidden": 5.0}
"""A forward pass that hides half of its all-gathers."""


def test_what_a_forward_pass_hides():
    whole = {"forward_gathers": 10.0, "forward_hidden": 10.0}
    assert "our FSDP hides 50 % of its all-gathers. " in steps({"fsdp": took(100.0, **HALF)})
    text = steps({"fsdp": took(100.0, **HALF)}, {"fsdp": took(100.0, **whole)})
    assert (
        "hides 50 % to 100 % of its all-gathers, least with nano, 2 GPUs, fp32, most with nano, 4 GPUs, fp32." in text
    )
    assert "In a forward pass by itself" not in steps({"fsdp": took(100.0), "fully_shard": took(100.0, **HALF)})


def test_what_the_drawn_steps_cover():
    # 2 of 8 ms of all-gathers and 3 of 4 of reduce-scatters.
    profiled = {"compute": 90.0, "communication": 12.0, "hidden": 5.0, "device_busy": 97.0, "timeline_length": 100.0}
    cell = {
        "fsdp": took(100.0, **profiled),
        "fsdp all_gather": {"communication": 8.0, "hidden": 2.0},
        "fsdp reduce_scatter": {"communication": 4.0, "hidden": 3.0},
    }
    drawn = (
        "the profiled steps with nano, 2 GPUs, fp32. Covered by compute are 25 % of 8.00 ms of all-gathers and 75 % of "
        "4.00 ms of reduce-scatters (FSDP, by layer)"
    )
    assert f"{drawn}. " in steps(cell)
    theirs = {f"fully_shard{name.removeprefix('fsdp')}": found for name, found in cell.items()}
    assert f"{drawn}; 25 % of 8.00 ms" in steps(cell | theirs)
    assert "Covered by compute" not in steps({"fsdp": took(100.0)})


def larger(size, wrapper, origin=GPU):
    """The section where a second model was trained too."""
    both = [
        trained({found: took(100.0)}, size=name, origin=origin) for name, found in (("nano", "fsdp"), (size, wrapper))
    ]
    return prose("fsdp", fsdp.answers({"fsdp": pandas.concat(both, ignore_index=True)}), origin)


def test_a_model_that_is_too_large_for_one_device():
    # 16 bytes for each of 12.8 billion weights; one device has 141 GiB.
    text = larger("10B", "fsdp")
    assert (
        "*A model that no single device can train.* Weights, gradients and moments of 10B take 205 GB, more than"
        in text
    )
    assert (
        "more than the 151 GB of one device; sharded they take 103 GB with 2 ranks. It trains with 2 GPUs, fp32,"
        in text
    )
    text = larger("10B", "fully_shard")
    assert "Our FSDP did not train it; @tab-fsdp-largest has the reasons." in text
    for text in (larger("micro", "fsdp"), larger("10B", "fsdp", CPU)):
        assert "*A model that is larger.*" in text
        assert "of one device" not in text
    assert "*A model that" not in steps({"fsdp": took(100.0)})


def accounted(*cells, origin=GPU, links=(), **setting):
    """The section on memory and waiting; links: GB/s of all-reduces between 2, 4, ... ranks."""
    reduced = {
        AllReduce(backend="nccl" if origin.gpu else "gloo", processes=2 * place): {"bus_bandwidth": rate}
        for place, rate in enumerate(links, start=1)
    }
    tables = {"fsdp": trained(*cells, origin=origin, **setting), "all_reduce": table("all_reduce", origin, reduced)}
    return prose("fsdp_accounting", fsdp_accounting.answers(tables), origin)


def expected_peaks():
    """What closed forms give for the peaks of nano, whole and sharded over 2, in MiB."""
    cell = FullyShardedTraining(**NANO)
    shape = SIZES["nano"]
    block = BlockActivations(
        shape=shape, batch_size=cell.batch_size, context=cell.context, precision="fp32", attention="plain", on_gpu=True
    )
    whole = StepMemory(block=block, vocab_size=cell.vocab_size, segment=0)
    ours = FullySharded(shape=shape, vocab_size=cell.vocab_size, ranks=2, precision="fp32")
    return whole.peak / MIB, peak_bytes(ours, whole) / MIB


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (1.04, "of the floor's peak, 1.04× of what the closed forms say, as expected."),
        (1.20, "of the floor's peak, 1.20× of what the closed forms say."),
        (-0.50, "of the floor's peak, -0.50× of what the closed forms say."),
    ],
)
def test_what_sharding_saves(share, sentence):
    whole, ours = expected_peaks()
    peak = whole - share * (whole - ours)
    cell = {"none": took(100.0, peak_memory=whole, timeline_length=1.0), "fsdp": took(100.0, peak_memory=peak)}
    text = accounted(cell)
    assert sentence in text
    assert f"our FSDP saves {significant(whole - peak)} MiB of" in text
    assert "Peak memory is counted on GPUs only" not in text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("profiled", [{}, {"timeline_length": 1.0}])
def test_what_stands_beside_the_closed_forms(profiled, precision):
    text = accounted({"none": took(100.0, **profiled)}, precision=precision)
    assert ("has the closed forms beside what PyTorch's allocator counted on rank 0:" in text) == bool(profiled)
    assert ("by closed form and measured, one observation each." in text) == bool(profiled)
    assert ("in bf16 it takes activations to be autocast's" in text) == (precision == "bf16")


def test_peaks_that_nobody_counted():
    cell = {"none": took(100.0), "fsdp": took(100.0)}
    assert "Peak memory is counted on GPUs only" in accounted(cell, origin=CPU)
    profiled = accounted(cell | {"fsdp": took(100.0, timeline_length=1.0)})
    assert "Peak memory is counted on GPUs only" not in profiled
    assert "our FSDP saves" not in profiled


FAST, SLOW = 1e6, 1e-3
"""GB/s: beside a forward pass of 10 ms nothing waits, or everything."""


@pytest.mark.parametrize(
    ("links", "sentence"),
    [
        ([FAST], "So weights should arrive in time, but for the first units."),
        ([SLOW], "So weights should arrive late, and not those of the first units alone."),
        ([FAST, FAST], "So weights should arrive in time in all 2 cases, but for the first units."),
        ([SLOW, SLOW], "So weights should arrive late in all 2 cases, and not those of the first units alone."),
        ([FAST, SLOW], "So weights should arrive in time, but for the first units, in 1 of 2 cases."),
    ],
)
def test_whether_weights_should_arrive_in_time(links, sentence):
    cell = {"none": took(100.0, forward=10.0), "fsdp": took(100.0)}
    text = accounted(*[cell] * len(links), links=links)
    assert sentence in text
    assert "This has no figures here" not in text


@pytest.mark.parametrize(
    ("cell", "links"),
    [
        ({"none": took(100.0, forward=10.0), "fsdp": took(100.0)}, []),
        ({"none": took(100.0), "fsdp": took(100.0)}, [FAST]),
        ({"fsdp": took(100.0)}, [FAST]),
        ({"none": took(100.0, forward=10.0)}, [FAST]),
    ],
)
def test_a_closed_form_without_rates(cell, links):
    text = accounted(cell, links=links)
    assert "This has no figures here" in text
    assert "So weights should arrive" not in text


def units(*waits):
    """A forward pass whose units wait for so many ms each, when the device is ready for them."""
    ready = [float(place) for place, _ in enumerate(waits)]
    begins = [place + wait for place, wait in zip(ready, waits, strict=True)]
    return {"gather_begins": ready, "gather_ends": begins, "needed": ready, "begins": begins}


def test_who_waited():
    # 1 + 2 and 1 + 4 ms; the passes hide half and all of their all-gathers, PyTorch's 20 %.
    first, second = (
        took(100.0, **HALF | units(1.0, 2.0)),
        took(100.0, **HALF | {"forward_hidden": 10.0} | units(1.0, 4.0)),
    )
    theirs = {"fully_shard": took(100.0, forward_gathers=10.0, forward_hidden=2.0)}
    text = accounted({"fsdp": first})
    assert "Our FSDP hides 50 % of the pass's all-gathers; ours waits for 3.00 ms. " in text
    text = accounted({"fsdp": first} | theirs, {"fsdp": second})
    assert (
        "hides 50 % to 100 % of the pass's all-gathers, `fully_shard` 20 %; ours waits for 3.00 ms to 5.00 ms," in text
    )
    assert "longest with nano, 4 GPUs, fp32." in text
    text = accounted({"fsdp": took(100.0, **units(1.0, 2.0))})
    assert "@fig-fsdp_gathers shows" in text
    assert "Our FSDP hides" not in text


def test_waiting_beside_what_was_measured():
    cell = {"none": took(100.0, forward=10.0), "fsdp": took(100.0)}
    beside = "by closed form, beside the waiting that was measured in one profiled pass on rank 0"
    assert beside in accounted(cell | {"fsdp": took(100.0, **units(1.0, 2.0))}, links=[FAST])
    assert beside not in accounted(cell, links=[FAST])


def test_why_nothing_is_drawn():
    cell = FullyShardedTraining(**NANO)
    found = trained({"fsdp": took(100.0)}, origin=CPU)
    details = {"wrapper": "fsdp"}
    skipped = Measurement(
        metric="device_busy", unit="ms", status="skipped", message="the host computes", details=details
    )
    rows = frame("fsdp", [make_row(cell, skipped, CPU)])
    both = pandas.concat([found, rows], ignore_index=True)
    tables = {"fsdp": both, "all_reduce": frame("all_reduce", [])}
    assert "arrived is not shown: the host computes." in prose("fsdp_accounting", fsdp_accounting.answers(tables), CPU)
    assert "communication is hidden is not shown: the host computes." in prose("fsdp", fsdp.answers(tables), CPU)
    assert "is not shown" not in steps({"fsdp": took(100.0)}) + accounted({"fsdp": took(100.0)})
