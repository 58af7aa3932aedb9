"""Self-checks that compare a metric with its closed form, or with other numbers of its cell: a table of laws."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy import max as max_of
from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops, plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.optimizer_sharding import fp32_adamw
from cs336_systems.accounting.peak_memory import inputs_and_gradients_bytes, peak, saved_for_backward
from cs336_systems.accounting.step_work import SPLIT_UPDATE_BYTES, all_pass_bytes
from cs336_systems.accounting.transformer import adamw_bytes, matmul_flops, parameter_tensors
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.contender import Declared, names_of
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.experiments.metrics import SECONDS, timed
from cs336_systems.experiments.optimizer_sharding import HELD
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import FIRST, FP8, TOP
from cs336_systems.measure import memory_timeline as of
from cs336_systems.measure.gpus import Gpu
from cs336_systems.record.measurement import POWER, SM_CLOCK, WALL
from cs336_systems.sizes import parse_size
from scripts.checks import TOLERANCE, Check
from scripts.checks.law import Expected, Law, Reading, Statement
from scripts.views.accumulated import accumulated
from scripts.views.attention_calls import PASSES
from scripts.views.cells import cell_of, declared
from scripts.views.closed_forms import block_of, flops_of, held_by_training, model_of, saved_by, step_of
from scripts.views.comparison import KINDS
from scripts.views.data import PHASES, samples, select
from scripts.views.fsdp import SHARDED, sharded, whole_weights
from scripts.views.kernels import kernels
from scripts.views.optimizer_sharding import predicted
from scripts.views.training_ladder import EXTRA, PARTS
from scripts.views.units import BYTE

DIGITS = 1e-4
"""Relative rounding of samples that are kept with five digits, and of sums of them."""
MOMENT = 0.01
"""Relative difference between two counts of memory at one moment: workspaces, and the allocator's rounding."""
UNATTRIBUTED = 0.01
"""The largest share of the kernels' time whose origin may be unknown."""
UNCLASSIFIED = 0.02
"""The largest share of the memory at the peak that may be unclassified."""
CLOCKS = 0.01
"""Relative difference between the times of equal steps that clocks explain."""
FP8_WORK = EXTRA[0]
"""The FP8 matmuls of a step, timed alone."""
SAME_WORK = 0.06
"""Relative difference between times of the same computation."""
IDLE = 0.02
"""Smallest share of its limit that a GPU draws."""
LEFT = {
    "left_by_forward": ("saved_activations", "saved_weight_copies"),
    "left_by_backward": ("parameter_gradients", "input_gradient"),
}
"""The tensors that each pass of a block leaves in memory."""
PERSISTENT = (of.PARAMETERS, of.OPTIMIZER_STATE)
WHOLES = {
    "forward_busy": "forward",
    "backward_busy": "backward",
    "optimizer_busy": "optimizer",
    "device_busy": "step",
    "stage_busy": "stage",
}
"""The host's time, or the time between events without the profiler, by metric of device time."""


def total(row: Series) -> float:
    """The sum of a row's samples, one per rank."""
    return sum(samples(row))


def largest(row: Series) -> float:
    """The largest of a row's samples."""
    return max(samples(row))


def attention_tensors(row: Mapping[Any, Any]) -> float:
    """The closed form of attention's memory in fp32, MiB; NaN for the peak of a compiled one."""
    if row["precision"] != "fp32" or (row["compiled"] and row["metric"] == "peak_memory"):
        return math.nan
    closed_form = plain_peak_bytes if row["metric"] == "peak_memory" else plain_bytes_before_backward
    return closed_form(row["batch_size"], row["sequence"], row["d"]) / MIB


def attention_memory(it: Reading) -> Expected:
    """The closed form plus the libraries' memory, which is the median of the remainder over all cells, MiB."""
    table = it.tables["attention"][["status", "metric", "mean", "precision", "compiled", "batch_size", "sequence", "d"]]
    rows = select(table, metric="memory_before_backward").to_dict("records")
    rows += select(table, metric="peak_memory").to_dict("records")
    over = [row["mean"] - attention_tensors(row) for row in rows]
    return attention_tensors(it.row.to_dict()) + statistics.median(left for left in over if not math.isnan(left))


def inputs_and_gradients(it: Reading) -> Expected:
    """At least the inputs of attention and their gradients, MiB."""
    row = it.row
    heads = row["batch_size"] * row["heads"]
    return inputs_and_gradients_bytes(heads, row["sequence"], row["d"], row["precision"]) / MIB, math.inf


def saved(it: Reading) -> Expected:
    """The closed form of a tensor that a block saves, MiB; 0 if it saves no such tensor."""
    key = (it.row["range"], it.row["operator"], it.row["tensor"])
    return sum(tensor.bytes for tensor in saved_by(it.row).get(key, [])) / MIB


def unattributed(it: Reading) -> Expected:
    """The share of a cell's kernels with unknown stage or module, which must be small."""
    launched = kernels(it.cell)
    unknown = launched[(launched["stage"] == "") | (launched["range"] == "")]
    share = unknown["ms"].sum() / launched["ms"].sum() if len(launched) else 0.0
    return share, min(share, UNATTRIBUTED)


def peak_of_stages(it: Reading) -> Expected:
    """The highest peak of a cell's stages; NaN unless the row is named after its stage."""
    peaks, named = select(it.cell, metric="stage_peak"), select(it.cell, metric="peak_stage")["value"]
    return (peaks["mean"].max(), select(peaks, stage=named.iloc[0])["mean"].sum()) if len(named) else None


def reached(it: Reading) -> Expected:
    """The maximum of a stage's timeline, bytes; infinite if its categories are from different moments."""
    moments = [samples(row) for _, row in select(it.cell, metric="active", stage=it.row["stage"]).iterrows()]
    if len(set(map(len, moments))) > 1:
        return math.inf
    return MIB * max(map(sum, zip(*moments, strict=True)), default=math.nan)


def held(category: str) -> Callable[[Reading], Expected]:
    """The closed form of a category's bytes, minus the allocator's rounding."""

    def expected(it: Reading) -> Expected:
        if it.row["model"] != MemoryProfile.model:
            return None
        of_training = held_by_training(it.row)
        copies = of_training[of.WEIGHT_COPIES] if it.row["precision"] == "bf16" else 0
        if category == of.ACTIVATIONS:
            return None if it.row["mode"] == "inference" else saved_for_backward(step_of(it.row)) - copies
        trained = it.row["mode"] == "train_step" or category == of.PARAMETERS
        return copies if category == of.WEIGHT_COPIES else trained * of_training[category]

    return expected


def up_to_the_most(it: Reading) -> Expected:
    """Up to the maximum of a row's category; equal to it at the peak if the category persists."""
    most = it.of("most", stage="")
    most = 0.0 if math.isnan(most) else most
    persists = it.row["metric"] == "at_peak" and it.row["category"] in PERSISTENT
    return most if persists else (0.0, most)


def with_whole_state(it: Reading, metric: str) -> list[tuple[Series, Declared]]:
    """The rows of a metric in a cell on GPUs, of contenders whose ranks each update all parameters."""
    rows = [(row, declared(it.kind, row)) for _, row in select(it.cell, metric=metric).iterrows() if row["gpu"]]
    return [(row, contender) for row, contender in rows if contender and contender.whole_state]


def without_communication(it: Reading) -> Expected:
    """At least the time of a step without communication, ms; on a CPU other programs also run."""
    slack = CLOCKS if it.row["gpu"] else TOLERANCE["CPU"]
    alone = it.of("step", "p20", wrapper=BASELINE, bucket_mb="")
    return None if it.row["wrapper"] == BASELINE else ((1 - slack) * alone, math.inf)


def over_the_link(it: Reading) -> Expected:
    """After the backward pass, at least the time of the fastest all-reduce of as many bytes, ms."""
    contender, cell = declared(it.kind, it.row), cell_of(it.kind, it.row)
    if not it.row["gpu"] or contender is None or not contender.after_backward(cell):
        return None
    rates = select(it.tables["all_reduce"], metric="algorithm_bandwidth", backend="nccl", processes=cell.processes)
    return it.of("communicated") / rates["median"].max(), math.inf  # MB / (GB/s) is ms


def a_few_roundings(it: Reading) -> Expected:
    """From 1/8 to 8 times the rounding error of the rung's matmuls; 0 would be a comparison with itself."""
    unit = 2.0**-4 if it.row["rung"] == FP8.name else 2.0**-8  # the largest relative error: FP8 has 3 bits, bf16 7
    return None if it.row["rung"] == FIRST.name else (unit / 8, 8 * unit)


def bytes_alone(it: Reading) -> Expected:
    """Time of a part of a step that only moves bytes, ms: the norms at a copy's speed, the update at most
    at the data sheet's bandwidth.
    """
    step = TOP.setting(it.row)
    if it.row["work"] == "update":
        return 1e3 * SPLIT_UPDATE_BYTES * step.weights / it.sheet.bandwidth, math.inf
    return 1e-6 * all_pass_bytes(step) / it.of("copy_speed", work="")


def kept_between_steps(it: Reading) -> Expected:
    """Weights and optimizer state of a rank, MiB, without and with libraries' workspaces."""
    row = it.row.rename({"wrapper": "contender"})
    if row["contender"] not in (BASELINE, *SHARDED):
        return None
    alone = row["contender"] == BASELINE
    kept = whole_weights(row) + adamw_bytes(*model_of(row)) if alone else sharded(row).weights + sharded(row).moments
    return kept / MIB, kept / MIB + 512


def usual_update(it: Reading) -> Expected:
    """The median time over the cell's other contenders that update all parameters, ms."""
    whole = [row for row, _ in with_whole_state(it, "optimizer")]
    others = [row["median"] for row in whole if row.name != it.row.name]
    return statistics.median(others) if others and len(others) < len(whole) else None


def on_a_rank(it: Reading) -> Expected:
    """The closed form of a rank's share of a part, MiB, with padding and unsharded tensors; None for a user's own."""
    if (form := predicted(it.row).get(it.row["part"])) is None:
        return None
    model, vocabulary = model_of(it.row)
    shared = 0 < form * MIB < getattr(fp32_adamw(model, vocabulary), it.row["part"])
    unequal = 2 * FP32_BYTES * model.d_model * max(model.d_ff, vocabulary) / MIB if shared else 0.0
    alignment = 256 * parameter_tensors(model) / MIB if form else 0.0  # bytes, of tensors in a bucket
    return form - unequal, 1.05 * form + unequal + alignment  # buckets are padded: all ranks' parts have one size


def on_all_ranks(it: Reading) -> Expected:
    """The whole optimizer state, MiB, on each rank if it is not sharded."""
    contender = declared(it.kind, it.row)
    copies = it.row["processes"] if contender is not None and contender.whole_state else 1
    return copies * fp32_adamw(*model_of(it.row)).optimizer_state / MIB if contender and total(it.row) else None


def tensors_of_all_ranks(it: Reading) -> Expected:
    """At least the tensors of all ranks, counted individually, MiB."""
    return sum(total(row) for part in HELD if (row := it.next_to("held", part=part)) is not None), math.inf


def in_use(it: Reading) -> Expected:
    """At least the memory in use on the fullest rank at the same moment, and at most its device's memory, MiB."""
    used = it.next_to("allocated")
    return None if used is None else (largest(used), it.row["gpu_memory"] / MIB)


def first_sample(it: Reading) -> Expected:
    """The first of the steps' samples, ms."""
    steps = it.next_to("step")
    return samples(steps)[0] if steps is not None and steps["samples"] else None


def usual_product(it: Reading) -> Expected:
    """Up to the usual time of the matmul that each attention cell times on a GPU, ms."""
    rows = select(it.tables["flash"], metric="matmul", gpu=it.row["gpu"], precision=it.row["precision"])
    return 0.0, rows["median"].median()


def undisturbed(it: Reading) -> Expected:
    """The shortest computation of contenders with the whole state whose communication uses no SMs, ms."""
    if it.row["wrapper"] != BASELINE:
        return None
    cell, known = cell_of(it.kind, it.row), with_whole_state(it, "compute")
    return min((row["mean"] for row, each in known if each.sends(cell) and not each.disturbs(cell)), default=None)


def as_profiled(it: Reading) -> Expected:
    """Between the computation time of a step without communication and its profiled length, ms."""
    alone = it.row["wrapper"] == BASELINE and it.row["model"] == it.kind.model
    return (it.of("compute", "median"), it.of("timeline_length", "median")) if alone else None


def while_busy(it: Reading) -> Expected:
    """Up to the time of the part that keeps a single process's device busy, ms.

    On several GPUs, a profiled device also waits for the others; a CPU's operators are slower under the profiler.
    """
    alone = it.row["gpu"] and it.row.get("processes", 1) == 1
    return (0.0, it.of(WHOLES[it.row["metric"]], "median")) if alone else None


def time_of_its_own(it: Reading) -> Expected:
    """At least the total seconds of a cell's timed metrics.

    On a CPU, both passes of attention in one call are the sum of the two.
    """
    summed = {"forward_backward"} if it.experiment == "flash" and not it.row["gpu"] else set()
    metrics = [name for name in timed(it.kind) if name not in summed]
    rows = it.cell[it.cell["metric"].isin(metrics) & (it.cell["status"] == "ok")]
    seconds = float((rows["n"] * rows["mean"] * rows["unit"].map(SECONDS)).sum())
    return (seconds, math.inf) if len(rows) else None


def sampled(it: Reading) -> Expected:
    """One sample per 0.1 s of a cell's time; if a busy host wakes the sampling thread late, at least one per 0.3 s,
    minus 3.
    """
    return it.of(WALL) / 0.3 - 3, it.of(WALL) / 0.1 + 1


def energy(it: Reading, seconds: float = 1.0) -> Expected:
    """Between an idle GPU's energy in some seconds and the limit of its data sheet, J; in one second, the power, W."""
    return IDLE * it.sheet.power_limit * seconds, it.sheet.power_limit * seconds


def power_at_a_low_clock(it: Reading) -> Expected:
    """95 % of the data sheet's limit if the clock is 5 % below the highest of `flash`, otherwise any power, W."""
    table = it.tables["flash"]
    known = table[table["metric"].isin([SM_CLOCK, HANDOUT_CLOCK]) & (table["gpu"] == it.row["gpu"])]
    slowed = it.of(HANDOUT_CLOCK, "median") < 0.95 * known["median"].max()
    return 0.95 * it.sheet.power_limit * slowed, math.inf


def sheet_rate(it: Reading) -> float:
    """The rate of the GPU's data sheet, or of its link, in the unit of a metric.

    Bus bandwidth counts the ring's 2 (n - 1) / n bytes. A switch that adds and copies (NVLink SHARP) saves bytes: then
    a GPU sends (n + 1) / n, each of its n shards to be added and one sum.
    """
    if it.row["metric"] == "copy_speed":
        return it.sheet.bandwidth / 1e9
    if it.row["metric"] == "matmul_rate":
        return max(it.sheet.bf16, it.sheet.fp32) / 1e12
    ranks = it.row["processes"]
    return (it.sheet.link or math.inf) / 1e9 * max(1, 2 * (ranks - 1) / (ranks + 1))


def up_to_the_data_sheet(it: Reading) -> Expected:
    """Up to the rate of the GPU's data sheet, in the metric's unit."""
    return (0.0, sheet_rate(it)) if it.row.get("backend", "nccl") == "nccl" else None


def peak_flops(gpu: Gpu, it: Reading) -> float:
    """The peak FLOP/s of a row's matmuls."""
    if it.experiment in ("attention", "flash"):
        return gpu.accurate_flops(it.row["precision"])
    if it.experiment == "training_ladder":
        part = it.row["work"] if it.row["metric"] == "floor" else it.row["rung"]
        return gpu.flops({FIRST.name: "fp32", FP8.name: "fp8", FP8_WORK: "fp8"}.get(part, "bf16"))
    return gpu.flops(it.row["precision"])


def flops(it: Reading) -> float:
    """The FLOPs of a step's matmuls, in the step or timed alone, or of a pass of attention."""
    row = it.row
    if row["metric"] == "floor":
        (shape, vocabulary), sequences = model_of(row), row["batch_size"]
        if row["work"] != "attention":
            return 3 * matmul_flops(shape, vocabulary, sequences * row["context"])
        heads = sequences, shape.num_heads, row["context"], shape.d_model // shape.num_heads
        return shape.num_layers * flash_flops("forward_backward", *heads, causal=True)
    if row["metric"] == "step":
        return flops_of(row, row.get("mode", "train_step"), causal=it.experiment == "training_ladder")
    heads = row["batch_size"], row.get("heads", 1), row["sequence"], row["d"]
    return flash_flops(row["metric"], *heads, causal=row.get("causal", False))


def at_the_peak(it: Reading) -> Expected:
    """At least the time of the matmuls at the data sheet's dense peak, ms."""
    return 1e3 * flops(it) / peak_flops(it.sheet, it), math.inf


STATE = {"part": "optimizer_state"}
HANDOUT_CLOCK = f"handout_{SM_CLOCK}"
GPU = TOLERANCE["GPU"]
WITH_BASELINE = [name for name, kind in KINDS.items() if BASELINE in names_of(kind.contenders)]
STEPS = ("end_to_end", "checkpointing", "kernel_profile", "training_ladder", *KINDS)
LAWS = {
    "the accumulated sums, their errors and last steps equal NumPy's": [
        Law("accumulation", metric, lambda it: accumulated(it.row)[it.row["metric"]])
        for metric in ("sum", "relative_error", "rounded_addend", "last_step")
    ],
    "every element of an all-reduce is right on every rank, before and after the timing": [
        Law("all_reduce", "wrong_numbers", lambda it: 0),
    ],
    "all-reduce bandwidths follow from sizes and times": [
        # The median is between the percentiles' bandwidths, MB/ms; two middle samples may be far apart.
        Law(
            "all_reduce",
            "algorithm_bandwidth",
            lambda it: tuple(it.row["megabytes"] / it.of("time", end) for end in ("p80", "p20")),
            0.05,
            column="median",
        ),
        # 2 (n - 1) / n of it, as nccl-tests define bus bandwidth.
        Law(
            "all_reduce",
            "bus_bandwidth",
            lambda it: it.of("algorithm_bandwidth", "median") * 2 * (1 - 1 / it.row["processes"]),
            1e-6,
            column="median",
        ),
    ],
    "attention's memory between its passes, and its peak if eager, is its closed form plus a constant": [
        # The libraries' memory may differ by a MiB between cells.
        Law("attention", "memory_before_backward", attention_memory, slack=1.0),
        Law("attention", "peak_memory", attention_memory, slack=1.0),
    ],
    "attention's peak memory is at least its inputs and their gradients": [
        Law("flash", "peak_memory", inputs_and_gradients),
    ],
    "the tensors that a block saves for backward, and its gradients, match their closed forms": [
        Law("block_memory", "saved", saved, slack=BYTE),
        Law(
            "block_memory",
            "saved",
            lambda it: sum(tensor.bytes for tensor in block_of(it.row).saved()) / MIB,
            slack=BYTE,
            per="saved_activations",
        ),
        Law("block_memory", "saved_weight_copies", lambda it: block_of(it.row).weight_copies / MIB, slack=BYTE),
        Law("block_memory", "parameter_gradients", lambda it: block_of(it.row).parameter_gradients / MIB, slack=BYTE),
        Law("block_memory", "input_gradient", lambda it: block_of(it.row).residual / MIB, slack=BYTE),
    ],
    "the memory that a block's passes leave allocated is the sum of the recorded tensors": [
        # The allocator's blocks may exceed the requested size.
        Law("block_memory", left, lambda it: sum(map(it.of, LEFT[it.row["metric"]])), (0.0, 0.02), slack=BYTE)
        for left in LEFT
    ],
    "the memory that a checkpointed step saves for backward matches its closed form": [
        Law("checkpointing", "saved_for_backward", lambda it: saved_for_backward(step_of(it.row)) / MIB, slack=BYTE),
    ],
    "a checkpointed step's peak is the highest of its phases, and its memory between passes adds up": [
        Law("checkpointing", "peak_memory", lambda it: max_of([it.of(f"peak_{phase}") for phase in PHASES]), MOMENT),
        Law(
            "checkpointing",
            "memory_before_backward",
            lambda it: it.of("memory_before_step") + it.of("saved_for_backward"),
            MOMENT,
        ),
        Law("checkpointing", "memory_before_step", lambda it: peak(step_of(it.row)).between_steps / MIB, MOMENT),
    ],
    "checkpointed blocks run twice per step, others once": [
        Law(
            "checkpointing",
            "block_calls",
            lambda it: (1 + bool(it.row["segment"])) * parse_size(it.row["size"]).num_layers,
        ),
    ],
    "compiled cells ran captured graphs, eager cells none": [
        Law("end_to_end", "compiled_graphs", lambda it: (1, math.inf) if it.row["compiled"] else 0),
    ],
    "the durations of a stage's kernels add up to its device-busy time": [
        Law(
            "kernel_profile",
            "stage_busy",
            lambda it: kernels(it.cell, [it.row["stage"]])["ms"].sum(),
            (0.002, DIGITS),  # kernels overlap: one may start while the last blocks of another run
        ),
    ],
    f"kernels of unknown stage or module take less than {UNATTRIBUTED:.0%} of the kernels' time": [
        Law("kernel_profile", "unattributed", unattributed, slack=DIGITS),
    ],
    "max_memory_allocated, the replayed timeline and the named stage agree on a step's peak memory": [
        Law("memory_profile", "peak_replayed", lambda it: it.of("peak_allocated")),
        Law("memory_profile", "peak_allocated", peak_of_stages),
    ],
    "parameters, gradients, AdamW's state, bf16 copies of weights and saved activations match closed forms": [
        Law("memory_profile", "most", held(category), tolerance, where={"category": category}, per="peak_allocated")
        for category, tolerance in (
            *((exact, 0.0) for exact in (of.PARAMETERS, of.GRADIENTS, of.OPTIMIZER_STATE, of.WEIGHT_COPIES)),
            (of.ACTIVATIONS, 0.02),  # a library may save additional numbers
        )
    ],
    f"less than {UNCLASSIFIED:.0%} of the memory at the peak is unclassified": [
        Law(
            "memory_profile",
            "at_peak",
            lambda it: (0.0, UNCLASSIFIED * it.row["mean"]),
            where={"category": of.UNCLASSIFIED},
            per="peak_allocated",
        ),
    ],
    "in the forward pass, additions allocate two tensors of the residual stream's size per block": [
        Law(
            "memory_profile",
            "residual_tensors",
            lambda it: 2 * parse_size(it.row["size"]).num_layers if it.row["model"] == it.kind.model else None,
            where={"operator": "add"},
            per="peak_allocated",
        ),
    ],
    "the memory timeline reaches each stage's peak and never exceeds it": [
        Law("memory_profile", "stage_peak", reached, DIGITS),
    ],
    "no category of memory exceeds its maximum; at the peak, parameters and AdamW's state reach theirs": [
        Law("memory_profile", "at_peak", up_to_the_most),
        Law("memory_profile", "stage_end", up_to_the_most),
        Law("memory_profile", "active", up_to_the_most, DIGITS, column=lambda row: MIB * largest(row)),
    ],
    "no data-parallel step is shorter with communication than without": [
        Law("data_parallel", "step", without_communication, column="p80"),
    ],
    "communication after the backward pass is no faster than the fastest measured all-reduce": [
        Law("data_parallel", "synchronization", over_the_link, (1 - 1 / (1 + GPU), 0.0), column="median"),
    ],
    "timed alone, norms move their bytes at a copy's speed, and the update no faster than the data sheet's bandwidth": [
        Law("training_ladder", "floor", bytes_alone, 0.05, column="median", where={"work": part}) for part in PARTS[2:]
    ],
    "a rung's gradients differ from fp32's, by a few roundings of its precision": [
        Law("training_ladder", "gradient_error", a_few_roundings),
    ],
    "sharded training's memory between steps is its closed form plus libraries' workspaces": [
        Law("fsdp", "between_steps", kept_between_steps, CLOCKS, column="median"),
    ],
    "a rank's parameters, gradients and optimizer state match closed forms, except for padding and unsharded tensors": [
        Law("optimizer_sharding", "held", on_a_rank, (DIGITS, 0.0), column=largest),
    ],
    "the ranks' shards add up to the whole optimizer state": [
        Law("optimizer_sharding", "held", on_all_ranks, DIGITS, column=total, where=STATE),
    ],
    "an equal share of the optimizer state lies between the ranks' smallest and largest shares": [
        Law(
            "optimizer_sharding",
            "held",
            lambda it: (min(samples(it.row)), largest(it.row)) if total(it.row) else None,
            DIGITS,
            column=lambda row: total(row) / row["processes"],
            where=STATE,
        ),
    ],
    "tensors fit into the allocated memory, which fits into its peak, which fits into the device": [
        Law("optimizer_sharding", "allocated", tensors_of_all_ranks, (DIGITS, 0.0), column=total),
        Law("optimizer_sharding", "peak_memory", in_use, (DIGITS, 0.0), column=largest),
    ],
    "the update takes equally long in all contenders that update every parameter": [
        Law(name, "optimizer", usual_update, 0.3, column="median")
        for name, kind in KINDS.items()
        if sum(each.whole_state for each in kind.contenders) > 1
    ],
    "a single process's device is never busy for longer than its step or phase takes": [
        Law(name, busy, while_busy, 0.05, column="median")  # device time is taken from another step
        for name, kind in EXPERIMENTS.items()
        for busy, whole in WHOLES.items()
        if {busy, whole} <= kind.metrics.keys() and name not in KINDS
    ],
    "the first timed step is the first sample": [
        Law("end_to_end", "first_step", first_sample, DIGITS),
    ],
    "no attention call takes longer when replayed from a CUDA graph": [
        Law(
            "flash",
            "graph",
            lambda it: (0.0, it.of("forward_backward", "median")) if it.row["gpu"] else None,
            GPU,
            column="median",
        ),
    ],
    "the matmul timed in each attention cell takes its usual time: no GPU was slowed down": [
        Law("flash", "matmul", usual_product, 0.3, column="median"),  # its power, and so its clock, varies
    ],
    f"compute takes as long with communication that takes no SMs from it as without any, within {SAME_WORK:.0%}": [
        Law(name, "compute", undisturbed, SAME_WORK) for name in WITH_BASELINE
    ],
    "a step without communication takes at least its compute time and at most its profiled time": [
        Law(name, "step", as_profiled, SAME_WORK, column="median") for name in WITH_BASELINE
    ],
    "no step or attention pass is faster than its matmuls at the data sheet's dense peak": [
        *(Law(name, "step", at_the_peak, column="median") for name in STEPS),
        *(
            Law("training_ladder", "floor", at_the_peak, column="median", where={"work": work})
            for work in (*PARTS[:2], FP8_WORK)
        ),
        *(Law("attention", each, at_the_peak, column="median") for each in ("forward", "backward")),
        *(Law("flash", each, at_the_peak, column="median") for each in PASSES),
    ],
    "no copy, matmul or all-reduce exceeds its rate in the data sheet": [
        Law("training_ladder", "copy_speed", up_to_the_data_sheet, column="median"),
        Law("training_ladder", "matmul_rate", up_to_the_data_sheet, column="median"),
        Law("all_reduce", "bus_bandwidth", up_to_the_data_sheet, column="median"),
    ],
    "memory in use never exceeds the GPU's memory": [
        Law(name, metric, lambda it: (0.0, it.row["gpu_memory"] / MIB) if it.row["gpu_count"] else None)
        for name, kind in EXPERIMENTS.items()
        for metric, unit in kind.metrics.items()
        if unit == "MiB" and metric != "planned_memory"  # a closed form, which may be an overestimate
    ],
    "a cell's timed metrics took no longer than the whole cell": [
        Law(name, WALL, time_of_its_own, (1 - 1 / (1 + CLOCKS), 0.0)) for name in EXPERIMENTS
    ],
    "the number of clock and power samples fits the cell's time": [
        *(Law(name, SM_CLOCK, sampled, column="n") for name in EXPERIMENTS),
        *(Law(name, POWER, lambda it: it.of(SM_CLOCK, "n"), column="n") for name in EXPERIMENTS),
    ],
    "a GPU's power is within its data sheet's limit": [
        *(Law(name, POWER, energy, (0.0, 0.1), column=each) for name in EXPERIMENTS for each in ("p20", "p80")),
        # In earlier code the GPU was warmer.
        Law("training_ladder", "energy", lambda it: energy(it, it.of("step") / 1e3), (0.0, 0.15)),
    ],
    "if the GPU's clock falls in a long repetition, its power is near the limit: nothing else throttles it": [
        Law("flash", f"handout_{POWER}", power_at_a_low_clock, column="median"),
    ],
}
"""Laws by the sentence that they check together."""


def laws_hold(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """One check per sentence."""
    for sentence, laws in LAWS.items():
        yield Statement(sentence, laws).check(tables)
