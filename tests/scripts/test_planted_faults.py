"""Faults planted one at a time in recorded rows: each fails the self-check that it is for, which names the cell."""

import re

import pytest

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.discovery import modules
from cs336_systems.experiments.metrics import COMMON
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.sizes import parse_size
from scripts.checks import law
from scripts.checks.laws import LAWS
from scripts.views.data import select
from tests.samples import PEAK
from tests.support.faults import (
    beyond,
    broken_laws,
    copy,
    drop,
    failures,
    nudge,
    on_a_cpu,
    put,
    recorded,
    relabel,
    rows,
    scale,
    sound_tables,
    swap,
)

TRAINED = {
    **{"size": "2.7B", "context": 512, "precision": "bf16", "compiled": False, "attention": "plain"},
    **{"mode": "train_step", "warmup": 5, "cold_start": False},
}
MEDIUM = TRAINED | {"size": "medium", "precision": "fp32"}
ALONE = MEDIUM | {"size": "large"}
SMALL = TRAINED | {"size": "small"}
PROFILED = {"size": "small", "context": 512, "precision": "bf16", "attention": "plain", "mode": "train_step"}
PASSES = ["forward", "forward_backward"]
OURS = {"implementation": "triton", "precision": "bf16", "d": 64, "heads": 1}
SHAPE = {"precision": "bf16", "d": 64, "heads": 1}
PLAIN = {"compiled": False, "d": 64}
SEGMENTS = {"attention": "flash", "segment": 4}
FOLLOWED = {"context": 512, "precision": "bf16", "attention": "plain", "mode": "train_step"}
UNCLASSIFIED = FOLLOWED | {"category": "allocator's rounding", "metric": ["at_peak", "most"]}
BLOCK = {"context": 2048, "precision": "bf16", "attention": "plain"}
RANKS = {"processes": 2, "precision": "fp32", "compiled": False, "kind": ""}
LARGE = PROFILED | {"size": "xl", "precision": "fp32", "compiled": False}
SCORES = {
    **LARGE | {"mode": "inference"},
    **{"metric": "kernel", "range": "scores", "category": "matmul", "stage": "forward"},
}
SHARES = {"processes": 2, "precision": "fp32", "contender": "sharded", "moment": "before_update"}
STATE = SHARES | {"moment": "after_update", "metric": "held", "part": "optimizer_state"}
FP32 = {"processes": 2, "precision": "fp32"}
UNITS = {"size": "2.7B", "processes": 2, "precision": "fp32"}


def later(turn):
    """The mark of all but the first."""
    return pytest.mark.slow if turn else ()


def in_samples(change):
    """Change the list of a row's samples."""
    return lambda text: format_samples(change(parse_samples(text)))


FAULTS = {
    "attention_calls": [
        scale(rows("flash", metric="backward", sequence=65536, **OURS), 1.3),
        scale(rows("flash", metric="forward_backward", sequence=32768, **OURS), 0.6),
        scale(rows("flash", metric="forward_backward", sequence=512, **OURS), 6),  # host-bound
        put(rows("flash", metric="launches", sequence=65536, **OURS), kernels="gemm"),
        swap(rows("flash", sequence=32768, **SHAPE), "implementation", "sdpa_cudnn", "flash_attention_4"),
        swap(rows("flash", sequence=32768, **OURS), "metric", *PASSES),
    ],
    "attention_memory": [
        scale(rows("attention", metric="peak_memory", sequence=16384, **PLAIN), 1.2),
        scale(rows("flash", metric="peak_memory", sequence=4096, **OURS), 1.2),
        (
            swap(rows("flash", sequence=16384, **SHAPE), "implementation", "triton", "plain"),
            "plain.: .* off the others",
        ),
    ],
    "completeness": [
        drop(rows("end_to_end", metric="device_busy", **TRAINED)),
        drop(rows("flash", metric="wall", sequence=8192, **OURS)),
        drop(rows("kernel_profile", metric="stage_idle", stage="loss", **PROFILED)),
        drop(rows("training_ladder", metric="launches", rung="overlap", size="xl", part="steps")),
        drop(rows("training_ladder", metric="floor", work="update", size="xl", context=1024)),
        put(rows("end_to_end", metric="build", **SMALL), status="skipped"),
        put(rows("end_to_end", metric="build", **SMALL), status="oom"),
        swap(rows("end_to_end", **TRAINED | {"size": "large", "mode": PASSES}), "mode", *PASSES),
    ],
    "contenders": [
        (nudge(rows("data_parallel", metric="hidden", wrapper="bucketed"), 9), r"bucketed 1, .* ms, busy .* of"),
        (nudge(rows("optimizer_sharding", metric="device_busy"), 9), "sharded, .* ms, busy .* of"),
        (nudge(rows("data_parallel", metric="timeline_length", wrapper="flat"), 9), "flat, .* timeline "),
        (nudge(rows("fsdp", metric="communication", kind="all_gather"), 9), "fsdp, .* ms, busy"),
        (nudge(rows("data_parallel", metric="communication", wrapper="naive"), 0), "naive, .* ms, busy"),
        (nudge(rows("fsdp", metric="communication", kind="reduce_scatter"), 0), "fsdp, .* reduce_scatter"),
        (swap(rows("data_parallel", wrapper="bucketed"), "bucket_mb", "10", "1000"), "bucketed 10, .* declared"),
        (nudge(rows("data_parallel", metric="communicated", wrapper="ddp_view"), 0.5), "ddp_view .* bytes, and "),
        (swap(rows("data_parallel", **FP32), "wrapper", "naive", "flat"), "naive, .* 1 messages, .* declared"),
    ],
    "dtypes": [
        put(rows("end_to_end", **MEDIUM, metric="logits_dtype"), value="bfloat16"),
        put(rows("autocast_dtypes", metric="norm_output", autocast="bf16"), value="bfloat16"),
        put(rows("training_ladder", metric="weights_dtype", rung="fused"), value="float32"),
        swap(rows("end_to_end", **TRAINED | {"precision": ["fp32", "bf16"]}), "precision", "fp32", "bf16"),
    ],
    "elsewhere": [
        # Named by the other experiment's cell.
        (
            scale(rows("end_to_end", metric=["forward_busy", "device_busy"], **SMALL), 0.9),
            "kernel_profile .*: forward_busy",
        ),
        (scale(rows("end_to_end", metric="launches", **SMALL), 1.01), "kernel_profile .*: launches"),
        (scale(rows("end_to_end", metric="peak_memory", **TRAINED), 0.9), "memory_profile .*: peak_memory"),
        swap(rows("kernel_profile", **PROFILED | {"context": [256, 512]}), "context", 256, 512),
    ],
    "end_to_end": [
        (
            put(rows("end_to_end", **ALONE | {"mode": "forward_backward"}, metric="backward"), p20=1e3),
            "large.* against",
        ),
        (put(rows("end_to_end", **ALONE | {"mode": "forward"}, metric="forward"), p20=1e-3), "large.* against"),
    ],
    "fsdp": [
        (
            put(rows("fsdp", **UNITS, wrapper="fsdp", metric=metric), samples=in_samples(change)),
            "fsdp, 2.7B, .*: unit 0 of",
        )
        for metric, change in (("begins", lambda times: len(times) * [0.0]), ("needed", lambda times: times[:-1]))
    ],
    "growth": [
        scale(rows("attention", metric="backward", sequence=16384, **PLAIN), 1.5),
        (put(rows("end_to_end", **MEDIUM, metric="forward"), p20=1e4), "size large.*, size medium p20"),
        put(rows("end_to_end", **MEDIUM | {"size": "large"}, metric="forward"), p80=1e-3),
        put(rows("all_reduce", backend="gloo", processes=2, megabytes=100, metric="time"), p80=1.0),
        swap(rows("end_to_end", **TRAINED | {"context": [256, 512]}), "context", 256, 512),
    ],
    "kernel_profile": [
        nudge(rows("kernel_profile", **LARGE, metric="stage_busy", stage="backward"), 1.06),
        nudge(rows("kernel_profile", **LARGE, metric="stage_busy", stage="backward"), 0.94),
        scale(rows("kernel_profile", **PROFILED, metric="stage_profiled", stage="backward"), 1.12),
        put(rows("kernel_profile", **SCORES), n=lambda n: n - 2),  # of two steps
        relabel(rows("kernel_profile", **SCORES), kernel="nvjet_another"),
        (swap(rows("kernel_profile", metric="kernel", **PROFILED), "category", "matmul", "elementwise"), "by its name"),
        (swap(rows("kernel_profile", metric="kernel", **PROFILED), "category", "copy", "elementwise"), "by its name"),
    ],
    "laws": [
        swap(rows("attention", sequence=8192, d=64), "compiled", False, True),
        swap(rows("flash", sequence=8192, **OURS | {"d": [64, 128]}), "d", 64, 128),
        put(rows("block_memory", **BLOCK, metric="saved", operator="silu"), tensor="float16 3"),
        drop(rows("block_memory", **BLOCK, metric="saved", operator="softmax")),
        scale(rows("block_memory", metric="wall", context=2048), 20),
        swap(rows("checkpointing", attention="flash"), "segment", 4, 8),
        scale(rows("checkpointing", metric="wall", **SEGMENTS), 0.8),
        scale(rows("end_to_end", **TRAINED, unit="ms", metric=["forward", "backward", "optimizer", "step"]), 0.8),
        scale(rows("end_to_end", metric="build", **TRAINED), 10),
        swap(rows("end_to_end", **TRAINED), "metric", "forward", "backward"),
        scale(rows("flash", metric="handout_sm_clock", implementation="sdpa_flash", d=64), 0.8),
        swap(rows("fsdp"), "precision", "fp32", "bf16"),
        scale(rows("kernel_profile", **PROFILED, metric="kernel", stage="backward"), 1.02),
        put(rows("memory_profile", **FOLLOWED, metric="peak_stage"), value="loss"),
        put(rows("memory_profile", **FOLLOWED, source="cs336_systems/model.py:123 forward"), mean=31.0),
        put(rows("memory_profile", **UNCLASSIFIED), category="unclassified", mean=1.38e9),
        scale(rows("memory_profile", metric="active", stage="backward", category="temporaries", **FOLLOWED), 0.5),
        swap(rows("memory_profile", **FOLLOWED), "category", "parameters", "gradients"),
        swap(rows("memory_profile", **FOLLOWED), "category", "saved activations", "temporaries"),
        put(rows("optimizer_sharding", **STATE), samples=in_samples(lambda ranks: ranks[:1])),
    ],
    "machine": [
        (put(rows("end_to_end", **MEDIUM, metric="logits_dtype"), tf32=True), "end_to_end: .* TF32 in 1 rows"),
        (put(rows("flash", sequence=8192, **OURS), gpu="NVIDIA H100"), "NVIDIA H100 and NVIDIA H200"),
        (put(rows("flash", sequence=8192, **OURS), gpu=""), "NVIDIA H200 and no GPU"),
        (put(rows("attention", sequence=8192), gpu_count=2), "attention: .* another number of GPUs in [1-9]"),
        (put(rows("flash", sequence=8192, **OURS), torch="2.12.0"), "flash: torch .* and 2.12.0"),
        (put(rows("end_to_end", **TRAINED), seed=1), "end_to_end: seed 0 and 1"),
        put(rows("autocast_dtypes", metric="loss", autocast="bf16"), git_commit="0" * 40),
        (put(rows("autocast_dtypes", autocast="bf16"), gpu_memory=80 * 2**30), "autocast_dtypes: .* GiB, not"),
        scale(rows("checkpointing", metric="sm_clock", **SEGMENTS), 2),
        scale(rows("checkpointing", metric="sm_clock", **SEGMENTS), 0.9876),
    ],
    "memory_profile": [
        scale(rows("memory_profile", metric="allocation", rank="3", **FOLLOWED), 2),
        put(rows("memory_profile", metric="lifetime", rank="2", **FOLLOWED), operator="mm"),
    ],
    "sums": [
        scale(rows("end_to_end", metric="backward", **TRAINED), 1.1),
        scale(rows("end_to_end", metric="step", **TRAINED), 0.9),
        scale(rows("end_to_end", metric="forward_busy", **TRAINED), 0.9),
        put(rows("checkpointing", metric="forward", **SEGMENTS), samples=in_samples(lambda times: times[::-1])),
        scale(rows("data_parallel", metric="forward", wrapper="flat", **FP32), 10),
        scale(rows("memory_profile", metric="at_peak", category="gradients", **FOLLOWED), 1.01),
        put(rows("block_memory", **BLOCK, metric="saved_activations"), mean=1.0),
        scale(rows("kernel_profile", metric="stage", stage="forward", **PROFILED), 1.5),
        scale(rows("checkpointing", metric="memory_before_step", **SEGMENTS), 1.0012345),
        scale(rows("end_to_end", metric="launches", **SMALL), 1.01),
    ],
    "training_ladder": [
        (
            put(rows("training_ladder", size="2.7B", rung="overlap", metric="step"), median=100.0),
            "overlap: .* parts alone",
        ),
        (put(rows("training_ladder", rung="masters", metric="loss_after"), mean=1.5), "masters: .*, fp32"),
    ],
    "twins": [
        (  # Named by the cell that was copied.
            copy(
                rows("flash", sequence=16384, **OURS),
                rows("flash", sequence=16384, **SHAPE, implementation="sdpa_flash"),
            ),
            "flash .sequence 16384",
        ),
        copy(rows("flash", sequence=4096, **OURS), rows("flash", sequence=2048, **OURS), 1.002),
        copy(rows("attention", sequence=8192, **PLAIN), rows("attention", sequence=8192, d=64, compiled=True)),
        relabel(rows("attention", sequence=8192, **PLAIN), sequence=12288),
    ],
    "what_fits": [
        scale(rows("end_to_end", metric="peak_memory", **SMALL), 0.95),
        scale(rows("training_ladder", metric="peak_memory", rung="graph", size="2.7B"), 0.8),
        put(rows("data_parallel", **RANKS, wrapper="none", metric="peak_memory"), mean=1e3),
        put(rows("fsdp", **UNITS, wrapper="none", metric="peak_memory"), mean=1e3),
        put(rows("optimizer_sharding", **SHARES, metric="peak_memory"), mean=7e4),
        scale(rows("end_to_end", **TRAINED | {"precision": "fp32", "mode": "inference"}, unit="ms"), 0.7),
        # Half a set of gradients more: neither with the first buckets nor without.
        put(rows("data_parallel", wrapper=["ddp", "ddp_view"], metric="peak_memory"), mean=lambda mib: mib + 3811),
        put(rows("end_to_end", **TRAINED, metric="step"), gpu_memory=32 * 2**30),
        put(rows("end_to_end", metric="cell", status="oom"), size="small"),
    ],
}
"""By module of scripts/checks: faults, and the beginning of the complaint where it is not the cell in words."""
ALLOWED = [
    ("training_ladder", put(rows("training_ladder", rung="fp8", metric="loss_after"), mean=1.5)),  # shown, not checked
    ("kernel_profile", scale(rows("kernel_profile", **PROFILED, metric="stage_profiled", stage="backward"), 1.08)),
    *(  # sums of partial matmuls
        ("kernel_profile", relabel(rows("kernel_profile", **SCORES), kernel=name, mean=0.0))
        for name in ("splitKreduce_kernel", "sm80_xmma_gemm_f32f32_tn_n_tilesize64x64x8_ffma_split_k")
    ),
]
"""Changes that are no fault, by module."""
WRAPPERS = rows("data_parallel")
OPTIMIZERS = rows("optimizer_sharding")
SHARDED = rows("fsdp")
COUNTED = [
    (swap(WRAPPERS, "wrapper", "naive", "flat"), "naive, .* and 21 declared"),
    (swap(WRAPPERS, "wrapper", "naive", "overlapped"), "0 × all_reduce in"),
    (swap(WRAPPERS, "wrapper", "flat", "none"), "none, .* and none declared"),
    (nudge(rows("data_parallel", metric="collectives", wrapper="ddp_view", bucket_mb="25"), 9), "_view 25, .* × all_r"),
    (swap(rows("data_parallel", bucket_mb="25"), "wrapper", "ddp", "ddp_view"), "broadcast"),
    (nudge(rows("data_parallel", metric="collective_bytes", wrapper="flat"), 0.5), "flat, .* bytes by all_reduce"),
    (nudge(rows("data_parallel", metric="tokens", wrapper="none"), 0.5), "none, .* 128 tokens of 256"),
    (nudge(rows("data_parallel", metric="written", wrapper="ddp"), 1.1), "ddp 25, .* times, and 2 times declared"),
    (nudge(rows("data_parallel", metric="written", wrapper="none"), 16), "naive, .*: gradients written -"),
    (nudge(rows("optimizer_sharding", metric="written", contender="sharded"), 1.1), "sharded, .* times, and 1 times"),
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
CASES = [
    pytest.param(part, *(fault if isinstance(fault, tuple) else (fault, None)), marks=later(turn), id=f"{part}-{turn}")
    for part, faults in FAULTS.items()
    for turn, fault in enumerate(faults)
]
"""The first of each module runs all its checks; the others are a sweep over all kinds of faults."""
LIMITS = [
    pytest.param(sentence, law, marks=later(turn), id=f"{law.experiment}-{law.metric}-{place}-{turn}")
    for place, (sentence, laws) in enumerate(LAWS.items())
    for turn, law in enumerate(law for law in laws if law.metric not in COMMON or law.experiment == "flash")
]
"""Metrics of every experiment, like the total time of a cell, have the same law in each: one stands for all."""
UNSCALED = ("an equal share of", "less than 2% of the memory")
"""Laws that no scaled number breaks: one is about the samples of a single row, the other about rows that no cell has.
Under `laws` above are their faults."""


@pytest.fixture(scope="module")
def cpu():
    return on_a_cpu()


def test_each_module_of_checks_has_faults():
    parts = {name.rpartition(".")[2] for name in modules("scripts.checks") if name != law.__name__}
    missing = parts - FAULTS.keys()
    assert not missing, f"FAULTS of tests/scripts/test_planted_faults.py has none that scripts.checks.{missing} notices"
    assert FAULTS.keys() == parts


@pytest.mark.parametrize(("part", "fault", "complaint"), CASES)
def test_a_planted_fault_fails_its_check_and_is_named(part, fault, complaint):
    sound = sound_tables(fault.place.table)
    tables = fault(sound)
    if part != "elsewhere":  # which compares experiments
        tables = {name: table if name == fault.place.table else table[:0] for name, table in tables.items()}
    errors = failures(part, tables)
    wanted = complaint or "|".join(map(re.escape, fault.cells(sound)))
    assert any(re.search(wanted, detail) for detail in errors), errors


@pytest.mark.parametrize(("sentence", "law"), LIMITS)
def test_a_law_notices_twice_its_tolerance_and_names_the_cell(sentence, law):
    sound = sound_tables(law.experiment)
    if next(law.readings(sound), None) is None:  # what the H200 has not measured yet
        sound = recorded("nvidia-h100-80gb-hbm3")
    faults = [] if sentence.startswith(UNSCALED) else list(beyond(law, sound))
    assert bool(faults) != sentence.startswith(UNSCALED)
    for cell, fault in faults:
        cases = [law.case(*reading) for reading in law.readings(fault(sound))]
        assert cell in [case.where for case in cases if case.wrong]


@pytest.mark.parametrize(("plant", "complaint"), COUNTED, ids=[case[1] for case in COUNTED])
def test_a_contender_that_does_something_else_is_named(cpu, plant, complaint):
    errors = failures("contenders", plant(cpu))
    assert any(re.search(complaint, detail) for detail in errors), errors


@pytest.mark.parametrize(("part", "change"), ALLOWED)
def test_what_may_be_is_no_fault(part, change):
    assert failures(part, change(recorded())) == []


def test_training_on_several_ranks_may_reach_its_bounds():
    tables = recorded()
    best = select(tables["all_reduce"], metric="algorithm_bandwidth", processes=2, backend="nccl")["median"].max()
    size = select(tables["data_parallel"], metric="communicated", wrapper="naive", **RANKS)["mean"].item()
    place = rows("data_parallel", metric="synchronization", wrapper="naive", **RANKS)
    for factor, failed in ((1.01, 0), (0.99, 1)):
        plant = put(place, median=factor * size / best / 1.15)
        assert len(broken_laws("data_parallel", plant(tables))) == failed


@pytest.mark.parametrize(("processes", "rate", "failed"), [(2, 449, 0), (2, 451, 1), (4, 530, 0), (4, 541, 1)])
def test_an_all_reduce_may_be_as_fast_as_its_link(processes, rate, failed):
    place = rows("all_reduce", processes=processes, megabytes=1000, metric="bus_bandwidth")
    assert len(broken_laws("all_reduce", put(place, median=float(rate))(recorded()), "no copy, matmul")) == failed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_may_reach_the_peak_rate(precision):
    fastest = 1e3 * step_flops("train_step", parse_size("medium"), 10_000, 4, 512) / PEAK.flops(precision)
    for factor, failed in ((1.01, 0), (0.99, 1)):
        plant = put(rows("end_to_end", **MEDIUM | {"precision": precision}, metric="step"), median=factor * fastest)
        assert len(broken_laws("end_to_end", plant(recorded()), "no step or attention")) == failed


def test_rows_of_earlier_code_tell_less(cpu):
    seen = ["collectives", "collective_bytes", "tokens", "written"]
    for tables in (cpu, {name: table[~table["metric"].isin(seen)] for name, table in cpu.items()}):
        assert failures("contenders", tables) == []
