"""Faults planted one at a time in recorded rows: each fails the self-check that it is for, which names the cell."""

import re

import pytest

from cs336_systems.accounting.transformer import step_flops
from cs336_systems.discovery import modules
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.sizes import parse_size
from scripts.views.comparison import KINDS
from scripts.views.data import frame, select
from tests.samples import PEAK, planned_rows
from tests.support.faults import copy, drop, failures, nudge, put, recorded, relabel, rows, scale, swap

TRAINED = {
    **{"size": "2.7B", "context": 512, "precision": "bf16", "compiled": False, "attention": "plain"},
    **{"mode": "train_step", "warmup": 5, "cold_start": False},
}
MEDIUM = TRAINED | {"size": "medium", "precision": "fp32"}
SMALL = TRAINED | {"size": "small"}
PROFILED = {"size": "small", "context": 512, "precision": "bf16", "attention": "plain", "mode": "train_step"}
PASSES = ["forward", "forward_backward"]
OURS = {"implementation": "triton", "precision": "bf16", "d": 64, "heads": 1}
SHAPE = {"precision": "bf16", "d": 64, "heads": 1}
PLAIN = {"compiled": False, "d": 64}
SEGMENTS = {"attention": "flash", "segment": 4}
FOLLOWED = {"context": 512, "precision": "bf16", "attention": "plain", "mode": "train_step"}
UNCLASSIFIED = FOLLOWED | {"category": "allocator's rounding", "metric": ["at_peak", "most"]}
BLOCK = {"context": 512, "precision": "bf16", "attention": "plain"}
RANKS = {"processes": 2, "precision": "bf16", "compiled": False, "kind": ""}
LARGE = PROFILED | {"size": "xl", "precision": "fp32", "compiled": False}
SCORES = {
    **LARGE | {"mode": "inference"},
    **{"metric": "kernel", "range": "scores", "category": "matmul", "stage": "forward"},
}
TWO = {"processes": 2, "precision": "bf16"}
FP32 = {"processes": 2, "precision": "fp32"}
UNITS = {"size": "2.7B", "processes": 2, "precision": "fp32"}
RUNG = {"size": "2.7B", "context": 1024}


def in_samples(change):
    """Change the list of a row's samples."""
    return lambda text: format_samples(change(parse_samples(text)))


FAULTS = {
    "accumulation": [
        (nudge(rows("accumulation", metric="sum", accumulator="bf16", addend="bf16"), 1.01), "sum 4.04 .expected 4.0"),
        (nudge(rows("accumulation", metric="last_step", accumulator="fp32", addend="fp16"), 1.001), "last_step 0.0100"),
    ],
    "all_reduce": [
        (
            put(rows("all_reduce", backend="nccl", processes=4, megabytes=100, metric="wrong_numbers"), mean=1, p80=2),
            "processes 4, backend nccl, megabytes 100.*: up to 2 wrong",
        ),
        (
            scale(rows("all_reduce", backend="nccl", megabytes=1000, metric="algorithm_bandwidth"), 1.2),
            "megabytes 1000.* from the times",
        ),
    ],
    "attention_calls": [
        (scale(rows("flash", metric="backward", sequence=65536, **OURS), 1.3), "65536, .*: 4.132 ms, in one call 3.44"),
        (scale(rows("flash", metric="forward_backward", sequence=32768, **OURS), 0.6), "in one call 0.540 ms"),
        (scale(rows("flash", metric="forward_backward", sequence=512, **OURS), 6), "in one call 1.457"),  # host-bound
        (scale(rows("flash", metric="graph", sequence=4096, **OURS), 6), "4096, .*: 0.632 ms, called 0.248 ms"),
        (put(rows("flash", metric="launches", sequence=65536, **OURS), kernels="gemm"), "65536, .* gemm: no kernel of"),
        (
            swap(rows("flash", sequence=32768, **SHAPE), "implementation", "sdpa_cudnn", "flash_attention_4"),
            "implementation flash_attention_4.*: no kernel of its own",
        ),
        (swap(rows("flash", sequence=32768, **OURS), "metric", *PASSES), "1.501 ms, in one call"),
    ],
    "attention_memory": [
        (scale(rows("attention", metric="memory_before_backward", sequence=8192, **PLAIN), 1.01), "85.92 MiB more"),
        (scale(rows("attention", metric="peak_memory", sequence=16384, **PLAIN), 1.2), "15% off the others"),
        (scale(rows("flash", metric="peak_memory", sequence=4096, **OURS), 1.2), "4096, .*16% off the others"),
        (put(rows("flash", metric="peak_memory", sequence=65536, **OURS), mean=47.9), "47.90 MiB, not 48.00"),
        (swap(rows("flash", sequence=16384, **SHAPE), "implementation", "triton", "plain"), "plain.: 0.69 MiB, 42%"),
        (swap(rows("attention", sequence=8192, d=64), "compiled", False, True), "peak_memory -4032.00 MiB more"),
        (swap(rows("flash", sequence=8192, **OURS | {"d": [64, 128]}), "d", 64, 128), "d 128, .*: 8.09 MiB, not 12.00"),
    ],
    "block_memory": [
        (put(rows("block_memory", **BLOCK, metric="saved", operator="silu"), mean=1.0), "2.7B, .*silu"),
        (put(rows("block_memory", **BLOCK, metric="saved", operator="silu"), tensor="float16 3"), "float16 3"),
        (put(rows("block_memory", **BLOCK, metric="saved_weight_copies"), mean=1.0), "copies"),
        (put(rows("block_memory", **BLOCK, metric="input_gradient"), mean=1.0), "input_gradient"),
        (put(rows("block_memory", **BLOCK, metric="left_by_forward"), mean=1e3), "left_by_forward 1000.0 MiB"),
        (put(rows("block_memory", **BLOCK, metric="left_by_backward"), mean=1.0), "left_by_backward 1.0 MiB"),
        (drop(rows("block_memory", **BLOCK, metric="saved", operator="softmax")), "softmax"),
    ],
    "busy": [
        (
            scale(rows("end_to_end", **TRAINED, unit="ms", metric=["forward", "backward", "optimizer", "step"]), 0.8),
            "backward 117% busy; .*step 108% busy",
        ),
        (swap(rows("end_to_end", **TRAINED), "metric", "forward", "backward"), "2.7B, .*: backward 140% busy"),
        (put(rows("training_ladder", **RUNG, rung="graph", metric="device_busy"), median=1e4), "graph: step .*% busy"),
    ],
    "checkpointing": [
        (put(rows("checkpointing", **SEGMENTS, metric="block_calls"), mean=32.0), "32 calls of 32 blocks"),
        (put(rows("checkpointing", **SEGMENTS, metric="saved_for_backward"), mean=1.0), "segments of 4: 1.000 MiB"),
        (scale(rows("checkpointing", **SEGMENTS, metric="peak_memory"), 1.1), "at the peak 62942 MiB, not 57220"),
        (scale(rows("checkpointing", **SEGMENTS, metric="memory_before_backward"), 1.05), "before backward 42615 MiB"),
        (scale(rows("checkpointing", **SEGMENTS, metric="memory_before_step"), 1.05), "before the step"),
        (swap(rows("checkpointing", attention="flash"), "segment", 4, 8), "32 calls|segments of 8: .* MiB, expected"),
    ],
    "completeness": [
        (drop(rows("end_to_end", metric="device_busy", **TRAINED)), "size 2.7B, precision bf16.: no device_busy"),
        (drop(rows("flash", metric="wall", sequence=8192, **OURS)), "sequence 8192, .*: no wall"),
        (drop(rows("kernel_profile", metric="stage_idle", stage="loss", **PROFILED)), "no stage_idle loss"),
        (drop(rows("fsdp", metric="optimizer", wrapper="fsdp", precision="bf16")), "no fsdp optimizer"),
        (drop(rows("training_ladder", metric="floor", work="update", size="small", context=512)), "no floor steps"),
        (put(rows("end_to_end", metric="build", **SMALL), status="skipped"), "build skipped"),
        (put(rows("end_to_end", metric="build", **SMALL), status="oom"), "build oom"),
        (
            swap(rows("end_to_end", **SMALL | {"mode": PASSES}), "mode", *PASSES),
            "mode forward_backward.: no backward, backward_busy",
        ),
    ],
    "contenders": [
        (nudge(rows("data_parallel", metric="hidden", wrapper="bucketed"), 9), r"bucketed 1, .* ms, busy .* of"),
        (nudge(rows("optimizer_sharding", metric="device_busy"), 9), "sharded, .* ms, busy .* of"),
        (nudge(rows("data_parallel", metric="timeline_length", wrapper="flat"), 9), "flat, .* timeline "),
        (nudge(rows("fsdp", metric="communication", kind="all_gather"), 9), "fsdp, .* ms, busy"),
        (nudge(rows("data_parallel", metric="communication", wrapper="naive"), 0), r"naive, .* \+ 0.0 - "),
        (nudge(rows("fsdp", metric="communication", kind="reduce_scatter"), 0), "reduce_scatter 0.00 ms"),
        (swap(rows("data_parallel", wrapper="bucketed"), "bucket_mb", "10", "1000"), "bucketed 10, .* 435 declared"),
        (nudge(rows("data_parallel", metric="communicated", wrapper="ddp_view"), 0.5), "bytes, and 7992940800"),
        (scale(rows("fsdp", metric=["compute", "device_busy"], wrapper="none", precision="bf16"), 0.5), "for 87.9 ms"),
        (scale(rows("data_parallel", metric="step", wrapper="none", processes=4, compiled=True), 0.9), "when profiled"),
        (swap(rows("data_parallel", **FP32), "wrapper", "naive", "flat"), "naive, .*: 1 messages, and 435 declared"),
    ],
    "data_parallel": [
        (put(rows("data_parallel", **RANKS, wrapper="naive", metric="step"), p80=1.0), "naive: p80 1.00 ms"),
        (put(rows("data_parallel", **RANKS, wrapper="flat", metric="synchronization"), median=9.0), "flat: .* least"),
        (put(rows("data_parallel", **RANKS, metric="gradient_error"), mean=0.0), "bf16_wire, 100: 0.0e"),
        (put(rows("data_parallel", **RANKS, metric="gradient_error"), mean=0.017), "bf16_wire, 100: 1.7e-02"),
    ],
    "data_sheet": [
        (put(rows("autocast_dtypes", autocast="bf16"), gpu_memory=80 * 2**30), "autocast_dtypes: 80.0 GiB, not"),
        (scale(rows("data_parallel", metric="outside_memory", wrapper="flat", **FP32), 1e5), "outside_memory 400000"),
        (scale(rows("training_ladder", metric="copy_speed"), 1.5), "copy_speed 6295 GB/s, 131% of it"),
        (put(rows("all_reduce", processes=2, megabytes=1000, metric="bus_bandwidth"), median=451.0), "bandwidth 451"),
        (put(rows("all_reduce", processes=4, megabytes=1000, metric="bus_bandwidth"), median=541.0), "bandwidth 541"),
    ],
    "dtypes": [
        (put(rows("end_to_end", **MEDIUM, metric="logits_dtype"), value="bfloat16"), "bfloat16, expected float32"),
        (put(rows("autocast_dtypes", metric="norm_output", autocast="bf16"), value="bfloat16"), "norm_output bf"),
        (put(rows("training_ladder", metric="weights_dtype", rung="fused"), value="float32"), "fused.*float32"),
        (swap(rows("end_to_end", **TRAINED | {"precision": ["fp32", "bf16"]}), "precision", "fp32", "bf16"), "logits"),
    ],
    "elsewhere": [
        (
            scale(rows("end_to_end", metric=["forward_busy", "device_busy"], **SMALL), 0.9),
            "kernel_profile .*: forward_busy 5.36, timed 4.82",
        ),
        (scale(rows("end_to_end", metric="launches", **SMALL), 1.01), "launches 2248.00, timed 2270.48"),
        (scale(rows("end_to_end", metric="peak_memory", **TRAINED), 0.9), "memory_profile .*: peak_memory 62664.54"),
        (swap(rows("kernel_profile", **PROFILED | {"context": [256, 512]}), "context", 256, 512), "busy .*, timed"),
    ],
    "end_to_end": [
        (put(rows("end_to_end", **MEDIUM | {"mode": "forward_backward"}, metric="backward"), p20=1e3), "against"),
        (put(rows("end_to_end", **MEDIUM | {"mode": "forward"}, metric="forward"), p20=1e-3), " against 145.53 ms"),
        (put(rows("end_to_end", **MEDIUM, metric="compiled_graphs"), mean=1.0), "fp32, training step: 1 graphs"),
        (put(rows("end_to_end", **TRAINED | {"compiled": True}, metric="compiled_graphs"), mean=0.0), ": 0 graphs"),
    ],
    "flash_ablation": [
        (scale(rows("flash_ablation", metric="forward", without="nothing", precision="bf16"), 1.3), "as it is 1.53 ms"),
        (scale(rows("flash_ablation", metric="forward", without="nothing", precision="bf16"), 0.5), "elsewhere 1.07"),
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
    "gpu_monitor": [
        (scale(rows("checkpointing", metric="sm_clock", **SEGMENTS), 2), "segment 4.*: 3930 MHz, the second highest"),
        (scale(rows("checkpointing", metric="sm_clock", **SEGMENTS), 0.9876), "1940.6 MHz"),
        (scale(rows("checkpointing", metric="power", **SEGMENTS), 2), "1241.3 to 1384.4 W of 700 W"),
        (scale(rows("block_memory", metric="wall", context=2048), 20), "3 and 3 in 5.52 s"),
        (scale(rows("checkpointing", metric="wall", **SEGMENTS), 0.8), "38 and 38 in 3.08 s"),
    ],
    "growth": [
        (scale(rows("attention", metric="backward", sequence=16384, **PLAIN), 1.5), "backward 6.02 times as long for"),
        (put(rows("end_to_end", **MEDIUM, metric="forward"), p20=1e4), "size large.*, size medium p20 10000.000 ms"),
        (put(rows("end_to_end", **MEDIUM | {"size": "large"}, metric="forward"), p80=1e-3), "large.* p80 0.001 ms"),
        (put(rows("all_reduce", backend="gloo", processes=2, megabytes=100, metric="time"), p80=1.0), "bytes 10 p20"),
        (
            swap(rows("end_to_end", **TRAINED | {"context": [256, 512]}), "context", 256, 512),
            "forward_busy 0.51 times as long for 2 times the length",
        ),
    ],
    "kernel_profile": [
        (nudge(rows("kernel_profile", **LARGE, metric="stage_busy", stage="backward"), 1.06), "backward: 458.29 ms in"),
        (nudge(rows("kernel_profile", **LARGE, metric="stage_busy", stage="backward"), 0.94), "backward: .* in the"),
        (scale(rows("kernel_profile", **PROFILED, metric="stage_profiled", stage="backward"), 1.12), "backward: .* in"),
        (scale(rows("kernel_profile", **PROFILED, metric="kernel", stage="backward"), 1.02), "kernels 9.218 ms, busy"),
        (put(rows("kernel_profile", **PROFILED, metric="unattributed"), mean=0.011), ": 1.1%"),
        (put(rows("kernel_profile", **SCORES), n=lambda n: n - 2), "432 kernels, 433 products"),  # of two steps
        (relabel(rows("kernel_profile", **SCORES), kernel="nvjet_another"), "481 kernels, 433 products"),
        (swap(rows("kernel_profile", metric="kernel", **PROFILED), "category", "matmul", "elementwise"), "by its name"),
        (swap(rows("kernel_profile", metric="kernel", **PROFILED), "category", "copy", "elementwise"), "by its name"),
    ],
    "memory_profile": [
        (put(rows("memory_profile", **FOLLOWED, metric="peak_replayed"), mean=1.0), "2.7B, .* replayed .* 1.0"),
        (put(rows("memory_profile", **FOLLOWED, metric="peak_stage"), value="loss"), "replayed or of a stage .* and"),
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
            "63 of 64 additions make 20971520 B",
        ),
        (
            put(rows("memory_profile", **UNCLASSIFIED), category="unclassified", mean=1.38e9),
            "2.7B, context 512, bf16, training step: 2.1%",
        ),
        (
            scale(rows("memory_profile", metric="active", stage="backward", category="temporaries", **FOLLOWED), 0.5),
            "backward 65588946702 B, peak 65708536832 B",
        ),
        (scale(rows("memory_profile", metric="most", category="temporaries", **FOLLOWED), 0.5), "at most 217055234 B"),
        (scale(rows("memory_profile", metric="allocation", rank="3", **FOLLOWED), 2), "by size: False; 0 without"),
        (put(rows("memory_profile", metric="lifetime", rank="2", **FOLLOWED), operator="mm"), "by size: True; 2"),
        (swap(rows("memory_profile", **FOLLOWED), "category", "parameters", "gradients"), "parameters at the peak"),
        (
            swap(rows("memory_profile", **FOLLOWED), "category", "saved activations", "temporaries"),
            "saved activations 434110468 B, expected",
        ),
    ],
    "optimizer_sharding": [
        (
            put(rows("optimizer_sharding", **TWO, contender=name, moment=moment, metric=metric, part=part), samples=x),
            complaint,
        )
        for name, moment, metric, part, x, complaint in (
            ("sharded", "after_update", "held", "optimizer_state", "7600 9000", "sharded, 2 GPUs, bf16: 16600.0 of 15"),
            ("sharded", "after_update", "held", "optimizer_state", "7600", "of 2 ranks, 7600.0 MiB on all"),  # one rank
            ("sharded", "before_update", "held", "gradients", "9000 9000", "gradients 9000.0 of 76"),
            ("unsharded", "initialized", "held", "parameters", "7000 7000", "parameters 7000.0 of 76"),
            ("zero_redundancy", "before_update", "allocated", "", "20000 20000", "rest -"),
            ("zero_redundancy", "after_update", "peak_memory", "", "2000*2", r"peak 2000\.0 MiB"),
        )
    ],
    "roofline": [
        (swap(rows("fsdp"), "precision", "fp32", "bf16"), r"fsdp \(defaults\), none: step 335% of the peak"),
        (put(rows("end_to_end", **MEDIUM, metric="step"), median=1e-2), r"end_to_end \(.*: step .*% of the peak"),
        (scale(rows("flash", metric="forward", sequence=65536, **OURS), 0.4), "flash .*: forward 126% of the peak"),
        (put(rows("attention", sequence=16384, **PLAIN, metric="backward"), median=1.0), "attention .*: backward .*%"),
        (put(rows("training_ladder", **RUNG, rung="overlap", metric="step"), median=10.0), "overlap: step .*% of the"),
    ],
    "slowed_card": [
        (scale(rows("flash", metric="handout_sm_clock", implementation="flex", d=64), 0.8), "1584 MHz at 622 W of 700"),
        (scale(rows("flash", metric="matmul", sequence=4096, **OURS), 1.5), "0.287 ms, usually 0.189 ms"),
    ],
    "sums": [
        (scale(rows("end_to_end", metric="backward", **TRAINED), 1.1), "2.7B, .*: step 200.747 ms, parts 211.059"),
        (scale(rows("end_to_end", metric="step", **TRAINED), 0.9), "up to 21.780 ms apart"),
        (scale(rows("end_to_end", metric="forward_busy", **TRAINED), 0.9), "device_busy 173.927 ms, parts 168.727"),
        (scale(rows("end_to_end", metric="first_step", **TRAINED), 0.5), "103.296 ms, first sample 206.590 ms"),
        (
            put(rows("checkpointing", metric="forward", **SEGMENTS), samples=in_samples(lambda times: times[::-1])),
            "segment 4.*: up to .* ms apart",
        ),
        (scale(rows("data_parallel", metric="forward", wrapper="flat", **FP32), 10), "flat: step 708.994 ms, parts"),
        (scale(rows("memory_profile", metric="at_peak", category="gradients", **FOLLOWED), 1.01), "peak_replayed"),
        (put(rows("block_memory", **BLOCK, metric="saved_activations"), mean=1.0), "activations 1.000 MiB, parts"),
        (scale(rows("kernel_profile", metric="stage", stage="forward", **PROFILED), 1.5), "step 38.179 ms, parts"),
    ],
    "training_ladder": [
        (put(rows("training_ladder", size="2.7B", rung="overlap", metric="step"), median=100.0), "overlap: 100.0 ms"),
        (put(rows("training_ladder", rung="masters", metric="loss_after"), mean=1.5), "masters: 1.500, fp32"),
    ],
    "twins": [
        (
            copy(rows("flash", sequence=16384, **OURS), rows("flash", sequence=16384, **SHAPE, implementation="flex")),
            "backward: flash .sequence 16384, rep 50.",
        ),
        (
            copy(rows("flash", sequence=4096, **OURS), rows("flash", sequence=2048, **OURS), 1.002),
            "2048, .* another sequence, all times within 0.20%",
        ),
        (
            copy(rows("attention", sequence=8192, **PLAIN), rows("attention", sequence=8192, d=64, compiled=True)),
            "another compiled, all times within 0.00%",
        ),
        (relabel(rows("attention", sequence=8192, **PLAIN), sequence=12288), "backward: attention .sequence 12288"),
    ],
    "updates": [
        (scale(rows("data_parallel", metric="optimizer", wrapper="ddp_view", **FP32), 1.5), "ddp_view, 25: 30.1 ms"),
    ],
    "versions": [
        (put(rows("end_to_end", **MEDIUM, metric="logits_dtype"), tf32=True), "end_to_end: .* TF32 in 1 rows"),
        (put(rows("flash", sequence=8192, **OURS), gpu="NVIDIA H100"), "NVIDIA H100 and NVIDIA H200"),
        (put(rows("attention", sequence=8192), gpu_count=2), "attention: .* another number of GPUs in 96"),
        (put(rows("flash", sequence=8192, **OURS), torch="2.12.0"), "flash: torch 2.11.0.cu130 and 2.12.0"),
        (put(rows("end_to_end", **TRAINED), seed=1), "end_to_end: seed 0 and 1"),
        (put(rows("autocast_dtypes", metric="loss", autocast="bf16"), git_commit="0" * 40), "of another job"),
    ],
    "wall": [
        (scale(rows("end_to_end", metric="wall", **TRAINED), 0.5), "2.7B, .*: 3.29 s timed in 2.13 s"),
        (scale(rows("end_to_end", metric="build", **TRAINED), 10), "2.7B, .*: 4.50 s timed in 4.27 s"),
    ],
    "what_fits": [
        (scale(rows("end_to_end", metric="peak_memory", **SMALL), 0.95), "3874 MiB, 4103 predicted"),
        (scale(rows("training_ladder", metric="peak_memory", rung="graph", size="2.7B"), 0.8), "graph: 41912 MiB"),
        (put(rows("data_parallel", **RANKS, wrapper="none", metric="peak_memory"), mean=1e3), "none.*: 1000 MiB, "),
        (put(rows("fsdp", **UNITS, wrapper="none", metric="peak_memory"), mean=1e3), "none.*: 1000 MiB, "),
        (
            put(rows("optimizer_sharding", **TWO, contender="sharded", moment="before_update", metric="peak_memory"),
                mean=7e4),
            "sharded.*: 70000 MiB, ",
        ),
        (
            scale(rows("end_to_end", **TRAINED | {"precision": "fp32", "mode": "inference"}, unit="ms"), 0.7),
            "mode inference.*: 225.9 ms, 349.8 predicted",
        ),
        (  # Half a set of gradients more: neither with the first buckets nor without.
            put(rows("data_parallel", wrapper=["ddp", "ddp_view"], metric="peak_memory"), mean=lambda mib: mib + 3811),
            "ddp.*: .* MiB, .* predicted",
        ),
        (put(rows("end_to_end", **TRAINED, metric="step"), gpu_memory=32 * 2**30), "2.7B, .*: it ran$"),
        (put(rows("end_to_end", metric="cell", status="oom"), size="small"), "it ran out of memory"),
    ],
    "whole_numbers": [
        (scale(rows("checkpointing", metric="memory_before_step", **SEGMENTS), 1.0012345), "memory_before_step"),
        (scale(rows("end_to_end", metric="launches", **SMALL), 1.01), "launches 2270.48"),
    ],
}  # fmt: skip
"""By module of scripts/checks: faults, and what is complained of."""
ALLOWED = [
    ("data_sheet", put(rows("all_reduce", processes=2, megabytes=1000, metric="bus_bandwidth"), median=449.0)),
    ("data_sheet", put(rows("all_reduce", processes=4, megabytes=1000, metric="bus_bandwidth"), median=530.0)),
    ("training_ladder", put(rows("training_ladder", rung="fp8", metric="loss_after"), mean=1.5)),  # shown, not judged
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
CASES = [
    pytest.param(part, *fault, marks=pytest.mark.slow if turn else (), id=f"{part}-{fault[1]}")
    for part, faults in FAULTS.items()
    for turn, fault in enumerate(faults)
]
"""The first of each module runs all its checks; the others are a sweep over all kinds of faults."""


@pytest.fixture(scope="module")
def cpu():
    """Tables of a CPU's training on several ranks. Not to be changed."""
    return {name: frame(name, planned_rows(name, "smoke")) for name in KINDS}


def test_each_module_of_checks_has_faults():
    assert [f"scripts.checks.{part}" for part in FAULTS] == modules("scripts.checks")


@pytest.mark.parametrize(("part", "plant", "complaint"), CASES)
def test_a_planted_fault_fails_its_check_and_is_named(part, plant, complaint):
    found = failures(part, plant(recorded()))
    assert any(re.search(complaint, detail) for detail in found), found


@pytest.mark.parametrize(("plant", "complaint"), COUNTED, ids=[case[1] for case in COUNTED])
def test_a_contender_that_does_something_else_is_named(cpu, plant, complaint):
    found = failures("contenders", plant(cpu))
    assert any(re.search(complaint, detail) for detail in found), found


@pytest.mark.parametrize(("part", "change"), ALLOWED)
def test_what_may_be_is_no_fault(part, change):
    assert failures(part, change(recorded())) == []


def test_training_on_several_ranks_may_reach_its_bounds():
    tables = recorded()
    best = select(tables["all_reduce"], metric="algorithm_bandwidth", processes=2, backend="nccl")["median"].max()
    size = select(tables["data_parallel"], metric="communicated", wrapper="naive", **RANKS)["mean"].item()
    for wrapper, metric, column, bound, inwards in (
        ("naive", "synchronization", "median", size / best / 1.15, 1),
        ("bf16_wire", "gradient_error", "mean", 3 * 2**0.5 / 2**8, -1),
    ):
        place = rows("data_parallel", metric=metric, wrapper=wrapper, **RANKS)
        for factor, failed in ((1 + 0.01 * inwards, 0), (1 - 0.01 * inwards, 1)):
            plant = put(place, **{column: factor * bound})
            assert len(failures("data_parallel", plant(tables))) == failed, metric


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_may_reach_the_peak_rate(precision):
    fastest = 1e3 * step_flops("train_step", parse_size("medium"), 10_000, 4, 512) / PEAK.flops(precision)
    for factor, failed in ((1.01, 0), (0.99, 1)):
        plant = put(rows("end_to_end", **MEDIUM | {"precision": precision}, metric="step"), median=factor * fastest)
        assert len(failures("roofline", plant(recorded()))) == failed


def test_rows_of_earlier_code_tell_less(cpu):
    seen = ["collectives", "collective_bytes", "tokens", "written"]
    for tables in (cpu, {name: table[~table["metric"].isin(seen)] for name, table in cpu.items()}):
        assert failures("contenders", tables) == []
