"""Each self-check on rows recorded on an H200: it fails on rows doctored to violate it, and names the cell."""

import importlib
import re

import pytest

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.sizes import parse_size
from scripts.checks import checks_of, contenders
from scripts.views.comparison import KINDS
from scripts.views.data import frame, select
from tests.samples import PEAK, planned_cells, planned_rows, rows_of
from tests.support.faults import nudge, put, rows, swap

STEP = {"size": "medium", "context": 512, "precision": "fp32", "compiled": False, "warmup": 5, "cold_start": False}
TRAINED, PASS = {**STEP, "mode": "train_step"}, {**STEP, "mode": "forward"}
COMPILED = {**TRAINED, "size": "2.7B", "compiled": True}
FLASH = {"implementation": "triton", "sequence": 65536, "d": 64, "precision": "bf16"}
PLAIN = {"sequence": 16384, "d": 64, "compiled": False}
PROFILED = {"size": "xl", "context": 512, "precision": "fp32", "compiled": False, "attention": "plain"}
FOLLOWED = {"context": 256, "precision": "bf16", "attention": "plain", "mode": "train_step"}
BLOCK = {"context": 512, "precision": "bf16", "attention": "plain"}
SEGMENTS = {"attention": "flash", "segment": 4}
RANKS = {"processes": 2, "precision": "bf16", "compiled": False, "kind": ""}
TWO = {"processes": 2, "precision": "bf16"}
UNITS = {"size": "2.7B", "processes": 2, "precision": "fp32"}


def chosen(name):
    """Cells of the handout's grids that are enough for the experiment's checks."""
    cells = planned_cells(name, "handout")
    if name == "data_parallel":
        cells = [DataParallelTraining(processes=2, precision=each, tried=each == "bf16") for each in ("fp32", "bf16")]
    if name == "optimizer_sharding":
        cells = [OptimizerSharding(processes=2, precision=each) for each in ("fp32", "bf16")]
    wanted = {
        "end_to_end": lambda cell: cell.size in ("medium", "large") or (cell.size == "xl" and cell.context == 512)
        or (cell.size == "2.7B" and cell.context == 256) or cell.compiled,
        "flash": lambda cell: cell.implementation == "triton",
        "kernel_profile": lambda cell: cell.size == "xl" and cell.context == 512,
        "fsdp": lambda cell: cell.processes == 2,
    }  # fmt: skip
    return list(filter(wanted.get(name), cells))


@pytest.fixture(scope="module")
def sound():
    """Tables without a fault. Not to be changed."""
    return {name: frame(name, rows_of(chosen(name))) for name in EXPERIMENTS}


def in_samples(change):
    """Change the list of a row's samples."""
    return lambda text: format_samples(change(parse_samples(text)))


FAULTS = {
    "end_to_end": [
        (put(rows("end_to_end", **{**STEP, "mode": "forward_backward"}, metric="backward"), p20=1e3), "against"),
        (put(rows("end_to_end", **PASS, metric="forward"), p20=1e-3), r"^end_to_end \(.* against"),
        (put(rows("end_to_end", **PASS, metric="compiled_graphs"), mean=1.0), "fp32, forward: 1 graphs"),
        (put(rows("end_to_end", **COMPILED, metric="compiled_graphs"), mean=0.0), ": 0 graphs"),
    ],
    "growth": [
        (put(rows("end_to_end", **TRAINED, metric="forward"), p20=1e4), "size large.*, size medium p20 10000.000 ms"),
        (put(rows("end_to_end", **{**TRAINED, "size": "large"}, metric="forward"), p80=1e-3), "large.* p80 0.001 ms"),
        (put(rows("all_reduce", backend="gloo", processes=2, megabytes=100, metric="time"), p80=1.0), "bytes 10 p20"),
    ],
    "busy": [
        (put(rows("end_to_end", **TRAINED, metric="forward"), median=1.0), "forward .*% busy"),
        (put(rows("end_to_end", **TRAINED, metric="backward_busy"), median=1e3), r"end_to_end \(.*: backward .*% busy"),
        (put(rows("end_to_end", **{**STEP, "mode": "inference"}, metric="forward"), median=1e-3), "forward .*% busy"),
    ],
    "dtypes": [
        (put(rows("end_to_end", **PASS, metric="logits_dtype"), value="bfloat16"), "bfloat16, expected float32"),
        (put(rows("end_to_end", **{**PASS, "precision": "bf16"}, metric="logits_dtype"), value="float32"), "float32, "),
    ],
    "versions": [
        (put(rows("end_to_end", **PASS, metric="logits_dtype"), tf32=True), "end_to_end: .* TF32 in 1 rows"),
    ],
    "roofline": [
        (put(rows("end_to_end", **TRAINED, metric="step"), median=1e-2), r"end_to_end \(.*: step .*% of the peak"),
        (put(rows("flash", **FLASH, metric="forward"), median=0.5), "flash .*: forward 111% of the peak"),
        (put(rows("attention", **PLAIN, metric="backward"), median=1.0), "attention .*: backward .*% of the peak"),
    ],
    "what_fits": [
        (put(rows("end_to_end", **TRAINED, metric="peak_memory"), mean=10.0), r"end_to_end \(.*: 10 MiB, .* predicted"),
        (put(rows("end_to_end", **PASS, metric="peak_memory"), mean=1e6), r"end_to_end \(.*: 1000000 MiB, "),
        (put(rows("data_parallel", **RANKS, wrapper="none", metric="peak_memory"), mean=1e3), "none.*: 1000 MiB, "),
        (put(rows("fsdp", **UNITS, wrapper="none", metric="peak_memory"), mean=1e3), "none.*: 1000 MiB, "),
        (put(rows("checkpointing", **SEGMENTS, metric="peak_memory"), mean=9e4), "segment 4.*: 90000 MiB, "),
        (
            put(rows("optimizer_sharding", **TWO, contender="sharded", moment="before_update", metric="peak_memory"),
                mean=7e4),
            "sharded.*: 70000 MiB, ",
        ),
    ],
    "attention_calls": [
        (put(rows("flash", **FLASH, metric="backward"), median=1e3), r"^flash \(sequence 65536, .* in one call"),
        (put(rows("flash", **FLASH, metric="forward_backward"), median=1.0), "in one call 1.000 ms"),
        (put(rows("flash", **FLASH, metric="launches"), kernels="gemm"), "65536, .* gemm: no kernel of its own"),
    ],
    "attention_memory": [
        (put(rows("flash", **FLASH, metric="peak_memory"), mean=47.9), "47.90 MiB, not 48.00"),
        (put(rows("attention", **PLAIN, metric="memory_before_backward"), mean=8e3), "sequence 16384.*: memory_before"),
        (put(rows("attention", **PLAIN, metric="memory_before_backward"), mean=1e6), "sequence 16384.*: memory_before"),
    ],
    "kernel_profile": [
        *(
            (nudge(rows("kernel_profile", **PROFILED, **row), factor), complaint)
            for row, factor, complaint in (
                ({"metric": "stage_busy", "stage": "backward", "mode": "train_step"}, 1.06, r"\(size xl\), backw"),
                ({"metric": "stage_busy", "stage": "backward", "mode": "train_step"}, 0.94, r"\(size xl\), backw"),
                ({"metric": "stage_profiled", "stage": "forward", "mode": "inference"}, 1.06, r"\), forward"),
            )
        ),
        (put(rows("kernel_profile", **PROFILED, metric="unattributed", mode="inference"), mean=0.011), ": 1.1%"),
    ],
    "elsewhere": [
        *(
            (nudge(rows("kernel_profile", **PROFILED, metric="stage_busy", stage="forward", mode=mode), by), "_busy")
            for mode, by in (("train_step", 1.2), ("inference", 0.8))
        ),
        (put(rows("memory_profile", **FOLLOWED, metric="peak_allocated"), mean=5e4 * MIB), "peak_memory 50000.00, "),
    ],
    "data_parallel": [
        (put(rows("data_parallel", **RANKS, wrapper="naive", metric="step"), p80=1.0), "naive: p80 1.00 ms"),
        (put(rows("data_parallel", **RANKS, wrapper="flat", metric="synchronization"), median=9.0), "flat: .* least"),
        (put(rows("data_parallel", **RANKS, metric="gradient_error"), mean=0.0), "bf16_wire, 100: 0.0e"),
        (put(rows("data_parallel", **RANKS, metric="gradient_error"), mean=0.017), "bf16_wire, 100: 1.7e-02"),
    ],
    "fsdp": [
        (
            put(rows("fsdp", **UNITS, wrapper="fsdp", metric="begins"), samples=in_samples(lambda x: len(x) * [0.0])),
            "fsdp, 2.7B, 2 GPUs, fp32: unit 0 of 226",
        ),
        (
            put(rows("fsdp", **UNITS, wrapper="fsdp", metric="needed"), samples=in_samples(lambda times: times[:-1])),
            "fsdp, 2.7B, 2 GPUs, fp32: unit 0 of 226",
        ),
        (put(rows("fsdp", **UNITS, wrapper="fsdp", metric="between_steps"), median=3e4), "fsdp, .*: 30000 MiB"),
    ],
    "memory_profile": [
        (put(rows("memory_profile", **FOLLOWED, metric="peak_replayed"), mean=1.0), "2.7B, .* replayed .* 1.0"),
        (
            put(rows("memory_profile", **FOLLOWED, metric="most", category="gradients"), mean=13_627_238_404.0),
            "gradients 13627238404 B, expected 13627238400 B",
        ),
        (
            put(rows("memory_profile", **FOLLOWED, metric="most", category="bf16 copies of weights"), mean=0.0),
            "bf16 copies of weights 0 B, expected",
        ),
        (
            put(rows("memory_profile", **FOLLOWED, source="cs336_systems/model.py:123 forward"), mean=31.0),
            "63 of 64 additions make 10485760 B",
        ),
    ],
    "sums": [
        (put(rows("memory_profile", **FOLLOWED, metric="at_peak", category="temporaries"), mean=0.0), "parts "),
        (put(rows("block_memory", **BLOCK, metric="saved_activations"), mean=1.0), "activations 1.000 MiB, parts"),
    ],
    "block_memory": [
        (put(rows("block_memory", **BLOCK, metric="saved", operator="silu"), mean=1.0), "2.7B, .*silu"),
        (put(rows("block_memory", **BLOCK, metric="saved", operator="silu"), tensor="float16 3"), "float16 3"),
        (put(rows("block_memory", **BLOCK, metric="saved_weight_copies"), mean=1.0), "copies"),
        (put(rows("block_memory", **BLOCK, metric="input_gradient"), mean=1.0), "input_gradient"),
        (put(rows("block_memory", **BLOCK, metric="left_by_forward"), mean=1e3), "left_by_forward 1000.0 MiB"),
        (put(rows("block_memory", **BLOCK, metric="left_by_backward"), mean=1.0), "left_by_backward 1.0 MiB"),
    ],
    "checkpointing": [
        (put(rows("checkpointing", **SEGMENTS, metric="saved_for_backward"), mean=1.0), "segments of 4: 1.000 MiB"),
        (put(rows("checkpointing", **SEGMENTS, metric="block_calls"), mean=32.0), "32 calls of 32 blocks"),
    ],
    "all_reduce": [
        (
            put(rows("all_reduce", backend="nccl", processes=4, megabytes=100, metric="wrong_numbers"), mean=1, p80=2),
            "processes 4, backend nccl, megabytes 100.*: up to 2 wrong",
        ),
    ],
    "data_sheet": [
        *(
            (put(rows("all_reduce", processes=n, megabytes=1000, metric="bus_bandwidth"), median=rate), said)
            for n, rate, said in ((2, 451.0, "bus_bandwidth 451"), (4, 541.0, "bus_bandwidth 541"))
        ),
    ],
    "optimizer_sharding": [
        (
            put(rows("optimizer_sharding", **TWO, contender=name, moment=moment, metric=metric, part=part), samples=x),
            complaint,
        )
        for name, moment, metric, part, x, complaint in (
            ("sharded", "after_update", "held", "optimizer_state", "7600 9000", "sharded, 2 GPUs, bf16: 16600.0 of 15"),
            ("sharded", "before_update", "held", "gradients", "9000 9000", "gradients 9000.0 of 76"),
            ("unsharded", "initialized", "held", "parameters", "7000 7000", "parameters 7000.0 of 76"),
            ("zero_redundancy", "before_update", "allocated", "", "20000 20000", "rest -"),
            ("zero_redundancy", "after_update", "peak_memory", "", "2000*2", r"peak 2000\.0 MiB"),
        )
    ],
}  # fmt: skip
FAULTS["contenders"] = [
    (nudge(rows("data_parallel", metric="hidden", wrapper="bucketed"), 9), r"bucketed 1, .* ms, busy .* of"),
    (nudge(rows("optimizer_sharding", metric="device_busy"), 9), "sharded, .* ms, busy .* of"),
    (nudge(rows("data_parallel", metric="timeline_length", wrapper="flat"), 9), "flat, .* timeline "),
    (nudge(rows("fsdp", metric="communication", kind="all_gather"), 9), "fsdp, .* ms, busy"),
    (nudge(rows("data_parallel", metric="communication", wrapper="naive"), 0), r"naive, .* \+ 0.0 - "),
    (nudge(rows("fsdp", metric="communication", kind="reduce_scatter"), 0), "reduce_scatter 0.00 ms"),
    (swap(rows("data_parallel", wrapper="bucketed"), "bucket_mb", "10", "1000"), "bucketed 10, .* 435 declared"),
]
WRAPPERS = rows("data_parallel")
OPTIMIZERS = rows("optimizer_sharding")
SHARDED = rows("fsdp")
COUNTED = [
    (swap(WRAPPERS, "wrapper", "naive", "flat"), "naive, .* and 21 declared"),
    (swap(WRAPPERS, "wrapper", "naive", "overlapped"), "0 × all_reduce in"),
    (swap(WRAPPERS, "wrapper", "flat", "none"), "none, .* and none declared"),
    (nudge(rows("data_parallel", metric="collectives", wrapper="ddp_view", bucket_mb="25"), 9), "_view 25, .* × all_r"),
    (swap(rows("data_parallel", bucket_mb="25"), "wrapper", "ddp", "ddp_view"), "broadcast"),
    (swap(WRAPPERS, "wrapper", "bf16_wire", "priority"), "priority 100, .* bytes by all_reduce"),
    (nudge(rows("data_parallel", metric="tokens", wrapper="none"), 0.5), "none, .* 128 tokens of 256"),
    (nudge(rows("data_parallel", metric="written", wrapper="ddp"), 1.1), "ddp 25, .* times, and 2 times declared"),
    (nudge(rows("data_parallel", metric="collectives", wrapper="flat", kind=""), 2), "2 in all"),
    (put(rows("data_parallel", wrapper="naive"), wrapper="new"), "new, nano"),
    (swap(OPTIMIZERS, "contender", "unsharded", "sharded"), "in update, and none"),
    (
        swap(OPTIMIZERS, "contender", "zero_redundancy", "zero_redundancy_view"),
        "zero_redundancy, .* broadcast in update, and 21 declared",
    ),
    (swap(SHARDED, "wrapper", "fsdp", "fsdp_blocks"), "fsdp, .* all_gather in passes, and 30"),
    (swap(SHARDED, "wrapper", "fsdp_blocks", "fully_shard"), "fully_shard, .* all_gather"),
    (
        nudge(rows("fsdp", metric="collectives", wrapper="fully_shard", kind="passes all_gather"), 0.5),
        "fully_shard, .* all_gather in passes",
    ),
    (
        nudge(rows("fsdp", metric="collective_bytes", wrapper="fully_shard", kind="passes all_gather"), 2),
        "fully_shard, .* bytes by all_gather in passes",
    ),
]
"""Faults of a CPU's rows, which count collectives, tokens and copies; those recorded on several H200s do not yet."""


def failures(module, tables):
    """The details of a module's failed checks."""
    found = checks_of(importlib.import_module(f"scripts.checks.{module}"), tables)
    return [check.detail for check in found if check.outcome == "failed"]


@pytest.mark.parametrize("module", sorted(FAULTS.keys() - {"what_fits"}))  # its rates are those of a real H200
def test_sound_rows_pass(sound, module):
    assert failures(module, sound) == []


CASES = [(module, *fault) for module, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("module", "plant", "complaint"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_a_doctored_row_fails_its_check_and_is_named(sound, module, plant, complaint):
    doctored = {name: table.copy() for name, table in sound.items()}
    plant(doctored)
    found = failures(module, doctored)
    assert any(re.search(complaint, detail) for detail in found), found


@pytest.mark.parametrize(("plant", "complaint"), COUNTED, ids=[case[1] for case in COUNTED])
def test_a_contender_that_does_something_else_is_named(plant, complaint):
    doctored = {name: frame(name, planned_rows(name, "smoke")) for name in KINDS}
    assert failures("contenders", doctored) == []
    plant(doctored)
    found = failures("contenders", doctored)
    assert any(re.search(complaint, detail) for detail in found), found


def test_training_on_several_ranks_may_reach_its_bounds(sound):
    best = select(sound["all_reduce"], metric="algorithm_bandwidth", processes=2, backend="nccl")["median"].max()
    size = select(sound["data_parallel"], metric="communicated", wrapper="naive", **RANKS)["mean"].item()
    for wrapper, metric, column, bound, inwards in (
        ("naive", "synchronization", "median", size / best / 1.15, 1),
        ("bf16_wire", "gradient_error", "mean", 3 * 2**0.5 / 2**8, -1),
    ):
        place = rows("data_parallel", metric=metric, wrapper=wrapper, **RANKS)
        for factor, failed in ((1 + 0.01 * inwards, 0), (1 - 0.01 * inwards, 1)):
            doctored = sound | {"data_parallel": sound["data_parallel"].copy()}
            put(place, **{column: factor * bound})(doctored)
            assert len(failures("data_parallel", doctored)) == failed, metric


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_may_reach_the_peak_rate(sound, precision):
    fastest = 1e3 * step_flops("train_step", parse_size("medium"), 10_000, 4, 512) / PEAK.flops(precision)
    for factor, failed in ((1.01, 0), (0.99, 1)):
        doctored = sound | {"end_to_end": sound["end_to_end"].copy()}
        put(rows("end_to_end", **TRAINED | {"precision": precision}, metric="step"), median=factor * fastest)(doctored)
        assert len(failures("roofline", doctored)) == failed


@pytest.mark.parametrize(("processes", "gigabytes"), [(2, 449.0), (4, 530.0)])
def test_a_link_may_carry_what_its_data_sheet_says(sound, processes, gigabytes):
    assert PEAK.link == 450e9
    doctored = sound | {"all_reduce": sound["all_reduce"].copy()}
    put(rows("all_reduce", processes=processes, megabytes=1000, metric="bus_bandwidth"), median=gigabytes)(doctored)
    assert failures("data_sheet", doctored) == []


def test_rows_of_earlier_code_tell_less(sound):
    seen = ["collectives", "collective_bytes", "tokens", "written"]
    told = list(checks_of(contenders, {name: table[~table["metric"].isin(seen)] for name, table in sound.items()}))
    assert {check.outcome for check in told} == {"passed"}
