"""Faults planted one at a time in what was recorded on an H200: each is noticed."""

import pytest

from cs336_systems.plan import make_plan
from scripts.self_checks import all_checks
from tests.samples import config
from tests.support.faults import copy, drop, lose, noticed, nudge, put, recorded, relabel, rows, scale, swap

SMALL = {"size": "small", "context": 512, "precision": "bf16", "compiled": False, "attention": "plain"}
LARGE = SMALL | {"size": "2.7B"}
STEP = {"mode": "train_step", "warmup": 5, "cold_start": False}
OURS = {"implementation": "triton", "precision": "bf16", "d": 64, "heads": 1}
PLAIN = {"compiled": False, "d": 64}
CHECKPOINTED = {"attention": "flash", "segment": 4}
MEMORY = {"context": 512, "precision": "bf16", "mode": "train_step"}

RANKS = {"processes": 2, "precision": "fp32"}
PROFILED = SMALL | {"mode": "train_step"}

FAULTS = {
    # One number, the rest of its row as it was.
    "a mean of samples": nudge(rows("end_to_end", metric="step", **LARGE, **STEP), 1.001),
    "a median without samples": put(rows("attention", metric="forward", sequence=16384, **PLAIN), median=10.0),
    "a mean without samples": nudge(rows("attention", metric="backward", sequence=16384, **PLAIN), 1.2),
    "a number of samples": put(rows("end_to_end", metric="forward", **LARGE, **STEP), n=9),
    "a unit": put(rows("flash", metric="forward", sequence=8192, **OURS), unit="us"),
    "a negative time": put(rows("flash", metric="forward", sequence=8192, **OURS), p20=-1.0),
    "a time of measurement to come": put(rows("accumulation", metric="sum"), utc="2126-01-01T00:00:00+00:00"),
    # Numbers that agree with their row, but with no other.
    "a phase": scale(rows("end_to_end", metric="backward", **LARGE, **STEP), 1.1),
    "a whole step": scale(rows("end_to_end", metric="step", **LARGE, **STEP), 0.9),
    "all host times of a cell": scale(
        rows("end_to_end", metric=["forward", "backward", "optimizer", "step", "first_step"], **LARGE, **STEP), 0.8
    ),
    "the device's time in a phase": scale(rows("end_to_end", metric="forward_busy", **LARGE, **STEP), 0.9),
    "the device's time in all phases": scale(
        rows(
            "end_to_end",
            metric=["forward_busy", "backward_busy", "optimizer_busy", "device_busy"],
            **SMALL,
            **STEP,
        ),
        0.9,
    ),
    "the first step, by itself": scale(rows("end_to_end", metric="first_step", **LARGE, **STEP), 0.5),
    "all times of inference": scale(
        rows("end_to_end", unit="ms", **(LARGE | {"precision": "fp32"}), mode="inference"), 0.7
    ),
    "launches": nudge(rows("end_to_end", metric="launches", **SMALL, **STEP), 1.01),
    "the first step": nudge(rows("end_to_end", metric="first_step", **SMALL, **STEP), 1.01),
    "a cell's total time": scale(rows("end_to_end", metric="wall", **LARGE, **STEP), 0.5),
    "a build's seconds": scale(rows("end_to_end", metric="build", **LARGE, **STEP), 10),
    "a checkpointed phase": scale(rows("checkpointing", metric="forward", **CHECKPOINTED), 1.1),
    "a checkpointed step's peak": scale(rows("checkpointing", metric="peak_memory", **CHECKPOINTED), 1.1),
    "what checkpointing saves": scale(rows("checkpointing", metric="saved_for_backward", **CHECKPOINTED), 1.01),
    "an attention pass of 30 ms": scale(rows("attention", metric="backward", sequence=16384, **PLAIN), 1.5),
    "a flash pass of 3 ms": scale(rows("flash", metric="backward", sequence=65536, **OURS), 1.3),
    "a flash pass, too short": scale(rows("flash", metric="forward", sequence=65536, **OURS), 0.4),
    "both passes in one call, 0.9 ms": scale(rows("flash", metric="forward_backward", sequence=32768, **OURS), 0.6),
    "both passes in one call, host-bound": scale(rows("flash", metric="forward_backward", sequence=512, **OURS), 6),
    "a replay of a graph": scale(rows("flash", metric="graph", sequence=4096, **OURS), 6),
    "a card too hot": scale(rows("flash", metric="handout_sm_clock", implementation="flex", d=64), 0.8),
    "a card slowed down": scale(rows("flash", metric="matmul", sequence=4096, **OURS), 1.5),
    "an ablation's baseline": scale(rows("flash_ablation", metric="forward", without="nothing", precision="bf16"), 1.3),
    "a stage's kernels": scale(rows("kernel_profile", metric="kernel", stage="backward", **PROFILED), 1.02),
    "one kernel": scale(
        rows("kernel_profile", metric="kernel", stage="forward", range="lm_head", category="matmul", **PROFILED), 1.5
    ),
    "a stage's busy time": scale(rows("kernel_profile", metric="stage_busy", stage="forward", **PROFILED), 1.02),
    "a stage": scale(rows("kernel_profile", metric="stage", stage="forward", **PROFILED), 1.5),
    "a sum": nudge(rows("accumulation", metric="sum", accumulator="bf16", addend="bf16"), 1.01),
    "a last step": nudge(rows("accumulation", metric="last_step", accumulator="fp32", addend="fp16"), 1.001),
    "a dtype": put(rows("autocast_dtypes", metric="norm_output", autocast="bf16"), value="bfloat16"),
    # Training on several GPUs.
    "a phase on two GPUs": scale(rows("data_parallel", metric="forward", wrapper="flat", **RANKS), 10),
    "an update on two GPUs": scale(rows("data_parallel", metric="optimizer", wrapper="ddp_view", **RANKS), 1.5),
    "a step of sharded training": scale(rows("fsdp", metric="step", wrapper="fsdp", precision="fp32"), 3),
    "a step of sharded training, halved": scale(rows("fsdp", metric="step", wrapper="fsdp", precision="fp32"), 0.5),
    "the baseline's times, halved": scale(rows("data_parallel", unit="ms", wrapper="none", **RANKS), 0.5),
    "the baseline's times, longer": scale(rows("data_parallel", unit="ms", wrapper="none", **RANKS), 1.1),
    "the baseline's steps": scale(
        rows("data_parallel", metric="step", wrapper="none", processes=4, compiled=True), 0.9
    ),
    "the baseline's times against sharded training": scale(
        rows("fsdp", unit="ms", wrapper="none", precision="fp32"), 0.9
    ),
    "the baseline's computation, by half a batch": scale(
        rows("fsdp", metric=["compute", "device_busy"], wrapper="none", precision="bf16"), 0.5
    ),
    "what is communicated": scale(rows("data_parallel", metric="communicated", wrapper="ddp_view", **RANKS), 0.5),
    # Memory.
    "a step's peak": scale(rows("end_to_end", metric="peak_memory", **LARGE, **STEP), 1.15),
    "a step's peak, too small": scale(rows("end_to_end", metric="peak_memory", **SMALL, **STEP), 0.95),
    "a rung's peak": scale(rows("training_ladder", metric="peak_memory", rung="graph", size="2.7B"), 0.8),
    "attention's memory between passes": scale(
        rows("attention", metric="memory_before_backward", sequence=8192, **PLAIN), 1.01
    ),
    "plain attention's peak": scale(rows("attention", metric="peak_memory", sequence=16384, **PLAIN), 1.2),
    "flash attention's peak": scale(rows("flash", metric="peak_memory", sequence=4096, **OURS), 1.2),
    "a saved tensor": scale(rows("block_memory", metric="saved", operator="softmax", precision="fp32"), 2),
    "a part of the peak": scale(rows("memory_profile", metric="at_peak", category="gradients", **MEMORY), 1.01),
    "memory of another cell": copy(
        rows("end_to_end", metric="peak_memory", **(LARGE | {"context": 256}), **STEP),
        rows("end_to_end", metric="peak_memory", **LARGE, **STEP),
    ),
    "a moment of the memory timeline": scale(
        rows("memory_profile", metric="active", stage="backward", category="temporaries", **MEMORY), 0.5
    ),
    "a stage's peak": scale(rows("memory_profile", metric="stage_peak", stage="backward", **MEMORY), 1.01),
    "the stage of the peak": put(rows("memory_profile", metric="peak_stage", **MEMORY), value="loss"),
    "a category's most": scale(rows("memory_profile", metric="most", category="temporaries", **MEMORY), 0.5),
    "an allocation": scale(rows("memory_profile", metric="allocation", rank="3", **MEMORY), 2),
    "a lifetime's line of code": put(rows("memory_profile", metric="lifetime", rank="2", **MEMORY), operator="mm"),
    "a checkpointed step's memory between its passes": scale(
        rows("checkpointing", metric="memory_before_backward", **CHECKPOINTED), 1.05
    ),
    "memory that is no whole number of bytes": scale(
        rows("checkpointing", metric="memory_before_step", **CHECKPOINTED), 1.0012345
    ),
    # What no card of this model has, or can do.
    "memory of another card": put(rows("autocast_dtypes", autocast="bf16"), gpu_memory=80 * 2**30),
    "more memory than the card has": scale(
        rows("data_parallel", metric="outside_memory", wrapper="flat", **RANKS), 1e5
    ),
    "a copy faster than the memory": scale(rows("training_ladder", metric="copy_speed"), 1.5),
    "a step on two GPUs in no time": scale(
        rows("data_parallel", metric=["step", "compute"], wrapper="flat", **RANKS), 0.4
    ),
    # How the GPU ran.
    "a clock that no other cell reaches": scale(rows("checkpointing", metric="sm_clock", **CHECKPOINTED), 2),
    "a clock between two": scale(rows("checkpointing", metric="sm_clock", **CHECKPOINTED), 0.9876),
    "more power than the board allows": scale(rows("checkpointing", metric="power", **CHECKPOINTED), 2),
    "a total time with too few samples of the clock": scale(rows("block_memory", metric="wall", context=2048), 20),
    "a total time with too many": scale(rows("checkpointing", metric="wall", **CHECKPOINTED), 0.8),
    # Cells that were not measured.
    "a copied cell": copy(
        rows("flash", sequence=16384, **OURS), rows("flash", sequence=16384, **(OURS | {"implementation": "flex"}))
    ),
    "a copied cell, made to look different": copy(
        rows("flash", metric=["forward", "backward", "forward_backward", "graph"], sequence=4096, **OURS),
        rows("flash", metric=["forward", "backward", "forward_backward", "graph"], sequence=2048, **OURS),
        1.002,
    ),
    "an eager cell as a compiled one": copy(
        rows("attention", sequence=8192, **PLAIN), rows("attention", sequence=8192, d=64, compiled=True)
    ),
    "a cell under another length": relabel(rows("attention", sequence=8192, **PLAIN), sequence=12288),
    "a cell under another size": relabel(rows("autocast_dtypes", autocast="bf16"), startup_seconds=1.0),
    # Labels.
    "precisions exchanged": swap(
        rows("end_to_end", **{**LARGE, "precision": ["fp32", "bf16"]}, **STEP), "precision", "fp32", "bf16"
    ),
    "precisions of sharded training exchanged": swap(
        rows("fsdp", precision=["fp32", "bf16"]), "precision", "fp32", "bf16"
    ),
    "contexts exchanged": swap(rows("end_to_end", **{**LARGE, "context": [256, 512]}, **STEP), "context", 256, 512),
    "contexts of a profile exchanged": swap(
        rows("kernel_profile", **{**PROFILED, "context": [256, 512]}), "context", 256, 512
    ),
    "modes exchanged": swap(
        rows("end_to_end", **SMALL, mode=["forward", "forward_backward"], cold_start=False),
        "mode",
        "forward",
        "forward_backward",
    ),
    "implementations exchanged": swap(
        rows("flash", sequence=16384, **{**OURS, "implementation": ["triton", "plain"]}),
        "implementation",
        "triton",
        "plain",
    ),
    "libraries exchanged": swap(
        rows("flash", sequence=32768, **{**OURS, "implementation": ["sdpa_cudnn", "flash_attention_4"]}),
        "implementation",
        "sdpa_cudnn",
        "flash_attention_4",
    ),
    "wrappers exchanged": swap(rows("data_parallel", wrapper=["naive", "flat"], **RANKS), "wrapper", "naive", "flat"),
    "bucket sizes exchanged": swap(
        rows("data_parallel", wrapper="bucketed", bucket_mb=["10", "100"], **RANKS), "bucket_mb", "10", "100"
    ),
    "a wrapper under a name that nobody declares": put(rows("data_parallel", wrapper="ddp", **RANKS), wrapper="new"),
    "categories of kernels exchanged": swap(
        rows("kernel_profile", metric="kernel", category=["matmul", "elementwise"], **PROFILED),
        "category",
        "matmul",
        "elementwise",
    ),
    "copies and elementwise kernels exchanged": swap(
        rows("kernel_profile", metric="kernel", category=["copy", "elementwise"], **PROFILED),
        "category",
        "copy",
        "elementwise",
    ),
    "categories of memory exchanged": swap(
        rows("memory_profile", category=["parameters", "gradients"], **MEMORY), "category", "parameters", "gradients"
    ),
    "activations and temporaries exchanged": swap(
        rows("memory_profile", category=["saved activations", "temporaries"], **MEMORY),
        "category",
        "saved activations",
        "temporaries",
    ),
    "head dimensions exchanged": swap(rows("flash", sequence=8192, **{**OURS, "d": [64, 128]}), "d", 64, 128),
    "compiled and eager exchanged": swap(rows("attention", sequence=8192, d=64), "compiled", False, True),
    "segments exchanged": swap(rows("checkpointing", attention="flash", segment=[4, 8]), "segment", 4, 8),
    "stages exchanged": swap(
        rows("kernel_profile", metric="stage", stage=["forward", "backward"], **PROFILED),
        "stage",
        "forward",
        "backward",
    ),
    "metrics exchanged": swap(
        rows("end_to_end", metric=["forward", "backward"], **LARGE, **STEP), "metric", "forward", "backward"
    ),
    "passes exchanged": swap(
        rows("flash", metric=["forward", "forward_backward"], sequence=32768, **OURS),
        "metric",
        "forward",
        "forward_backward",
    ),
    # Rows that are missing, or too many.
    "a lost metric": drop(rows("end_to_end", metric="device_busy", **LARGE, **STEP)),
    "a lost total": drop(rows("flash", metric="wall", sequence=8192, **OURS)),
    "a lost clock": drop(rows("end_to_end", metric="sm_clock", **LARGE, **STEP)),
    "a lost stage": drop(rows("kernel_profile", metric="stage_idle", stage="loss", **PROFILED)),
    "a lost kernel": drop(rows("kernel_profile", metric="kernel", stage="forward", range="lm_head", **PROFILED)),
    "a lost metric of a contender": drop(rows("fsdp", metric="optimizer", wrapper="fsdp", precision="bf16")),
    "a lost cell": drop(rows("flash", sequence=8192, **OURS)),
    "a lost tensor": drop(rows("block_memory", metric="saved", operator="softmax", precision="fp32", context=128)),
    "an unplanned cell": relabel(rows("end_to_end", **LARGE, **STEP), context=2048),
    "a row twice": relabel(rows("flash", metric="forward", sequence=8192, **OURS)),
    "a cell out of memory that was measured": put(
        rows("end_to_end", metric="step", **LARGE, **STEP), status="oom", message="out of memory"
    ),
    "a number lost as if memory ran out": lose(rows("end_to_end", metric="build", **SMALL, **STEP), "oom"),
    "a number lost that all other cells have": lose(rows("end_to_end", metric="build", **SMALL, **STEP), "skipped"),
    "steps in another order": put(
        rows("checkpointing", metric="forward", **CHECKPOINTED), samples=lambda text: " ".join(reversed(text.split()))
    ),
    # Origins.
    "one row of another commit": put(rows("autocast_dtypes", metric="loss", autocast="bf16"), git_commit="0" * 40),
    "one row of another time": put(
        rows("autocast_dtypes", metric="loss", autocast="bf16"), utc="2026-01-01T00:00:00+00:00"
    ),
    "another GPU": put(rows("flash", sequence=8192, **OURS), gpu="NVIDIA H100"),
    "another PyTorch": put(rows("flash", sequence=8192, **OURS), torch="2.12.0+cu130"),
    "another Triton": put(rows("flash", sequence=8192, **OURS), triton="3.7.1"),
    "another driver": put(rows("attention", sequence=8192), driver="570.86"),
    "another seed": put(rows("end_to_end", **LARGE, **STEP), seed=1),
    "TF32": put(rows("attention", sequence=8192), tf32=True),
    "a negative start-up time": put(rows("attention", sequence=8192), startup_seconds=-1.0),
    "two GPUs": put(rows("attention", sequence=8192), gpu_count=2),
    "a processor": put(rows("end_to_end", **LARGE, **STEP), cpu="another"),
}
"""Each change by name."""

UNNOTICED = {
    "stages exchanged": "in host-bound steps, a stage can take any time from what its kernels take",
}
"""Faults that no check notices so far, and why."""


@pytest.fixture(scope="module")
def plan():
    """The plan for one H200."""
    return make_plan(config(machine="1 x NVIDIA H200"))


@pytest.fixture(scope="module")
def sound():
    """The recorded tables, of some experiments only some model sizes. Not to be changed."""
    tables = recorded()
    sizes = {"end_to_end": ["small", "2.7B"], "kernel_profile": ["small"]}
    return tables | {name: tables[name][tables[name]["size"].isin(some)] for name, some in sizes.items()}


@pytest.mark.slow  # tests/golden has its checks
def test_what_was_recorded_is_sound(sound):
    assert [check.check for check in all_checks(sound) if check.outcome == "failed"] == []


def cases():
    """Each fault, those that nothing notices as expected failures."""
    for name in FAULTS:
        why = UNNOTICED.get(name)
        yield pytest.param(name, marks=pytest.mark.xfail(reason=why, strict=True) if why else ())


@pytest.mark.slow  # a sweep over all kinds of faults
@pytest.mark.parametrize("name", list(cases()))
def test_a_planted_fault_is_noticed(plan, sound, name):
    plant = FAULTS[name]
    doctored = {table: rows.copy() for table, rows in sound.items()}
    plant(doctored)
    (changed,) = [table for table in sound if not doctored[table].equals(sound[table])]
    assert noticed(plan, sound, changed, doctored[changed])
