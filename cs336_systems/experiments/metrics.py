"""Metrics of each experiment: unit, meaning, whether it took separate time, and the metric that it is part of. No torch
here.

Experiments, checks, validation and the data dictionary (docs/data-dictionary.md) read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""The units of time."""


@dataclass(frozen=True)
class Metric:
    """The meaning of one metric of an experiment."""

    unit: str
    """Unit of its statistics, as in the rows."""
    meaning: str
    """One sentence without its full stop."""
    timed: bool = False
    """Whether its samples took separate time: at least n times its mean was spent in the cell, in addition to other
    timed metrics."""
    part_of: str = ""
    """The metric of the same unit that it is part of; all parts add up to it. A timed part was measured in other steps,
    so timed parts add up only approximately."""
    between: float = 0.0
    """Share of the whole that may lie between its parts; 0: they add up to the digit."""
    counts: bool = False
    """Whether it counts something, in whole numbers."""
    unaffected: bool = False
    """Whether it is independent of implementation, compilation and length, so that times of several cells may agree."""
    zero: bool = False
    """Whether it may be zero although it is a time: it may never happen, or happen at the start."""

    @property
    def exact(self) -> bool:
        """Whether it and the other parts of a whole add up to it to the digit."""
        return not self.timed and not self.between


class Measured(Protocol):
    """An experiment."""

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, str]]


def metrics_of(experiment: type[Measured]) -> Mapping[str, Metric]:
    """Look up the metrics of an experiment; without an entry in METRICS, only their units are known."""
    known = METRICS.get(experiment.name, {})
    return {name: known.get(name, Metric(unit, "")) for name, unit in experiment.metrics.items()}


def timed(experiment: type[Measured]) -> list[str]:
    """The metrics of an experiment that took separate time."""
    return [name for name, metric in metrics_of(experiment).items() if metric.timed]


def wholes(experiment: type[Measured]) -> dict[str, list[str]]:
    """The metrics of an experiment that have parts, and the parts' names."""
    parts: dict[str, list[str]] = {}
    for name, metric in metrics_of(experiment).items():
        if metric.part_of:
            parts.setdefault(metric.part_of, []).append(name)
    return parts


COMMON: Mapping[str, Metric] = {
    "cell": Metric("", "The single row of a cell that could not be measured: its status and message say why"),
    "wall": Metric("s", "Total time of the cell, including untimed parts (build, compilation, release)"),
    "sm_clock": Metric("MHz", "Clock of the GPU's SMs, sampled during the whole cell"),
    "power": Metric("W", "Power of the GPU, sampled during the whole cell"),
}
"""Metrics that every experiment has."""

_PHASES = {
    "forward": Metric("ms", "Forward pass and loss", part_of="step"),
    "backward": Metric("ms", "Backward pass", part_of="step"),
    "optimizer": Metric("ms", "The optimizer's update", part_of="step", unaffected=True),
    "step": Metric("ms", "A step, on the host's clock, from an idle device to an idle device", timed=True),
}
_PASSES_BUSY = {
    "forward_busy": Metric("ms", "Device-busy time of the forward pass", part_of="device_busy"),
    "backward_busy": Metric("ms", "Device-busy time of the backward pass", part_of="device_busy"),
}
_BUSY = {
    "device_busy": Metric("ms", "Device-busy time of one more step, from a profile"),
    "launches": Metric("", "Kernels, copies and fills that this step launches", counts=True),
}
_PEAK = {"peak_memory": Metric("MiB", "Peak memory of PyTorch's allocator")}
_WARMUP = {"warmup": Metric("s", "All warm-up steps together", timed=True, zero=True)}

# Metrics of training on several ranks.
_STEPS = {
    "step": Metric("ms", "A step by the slowest rank, in the order of the rounds", timed=True),
    "forward": Metric("ms", "Forward pass and loss, by the slowest rank", timed=True, part_of="step"),
    "backward": Metric("ms", "Backward pass, by the slowest rank", timed=True, part_of="step"),
    "synchronization": Metric(
        "ms", "Exposed communication of gradients after the backward pass", timed=True, part_of="step"
    ),
    "optimizer": Metric(
        "ms", "The optimizer's update, and its communication, by the slowest rank", timed=True, part_of="step"
    ),
}
_PROFILE = {
    "device_busy": Metric("ms", "Device-busy time of one more step on rank 0, from a profile"),
    "compute": Metric("ms", "Time in which anything other than communication runs in that step"),
    "communication": Metric("ms", "Time in which collectives run in that step", zero=True),
    "hidden": Metric("ms", "Time in which collectives overlap with compute in that step", zero=True),
    "timeline": Metric("share", "Share of each of 200 equal parts of that step in which this kind of work runs"),
    "timeline_length": Metric("ms", "That step, with the profiler"),
}
_OBSERVED = {
    "collectives": Metric("", "Collectives of floating-point data in a step before the timed ones", counts=True),
    "collective_bytes": Metric("B", "Bytes that rank 0 contributes to these collectives"),
    "tokens": Metric("", "Tokens passed to the model in that step", counts=True),
    "written": Metric("B", "Bytes that PyTorch's operators write in that step, except the update"),
}
_OUTSIDE = {
    "outside_memory": Metric("MiB", "Device memory in use outside PyTorch's allocator, relative to the baseline")
}

METRICS: dict[str, dict[str, Metric]] = {
    "accumulation": {
        "sum": Metric("", "The sum"),
        "relative_error": Metric("", "Its difference from the exact sum, relative to the exact sum"),
        "rounded_addend": Metric("", "0.01 in the addend's type"),
        "last_step": Metric("", "Increase of the sum by the last addition"),
    },
    "all_reduce": {
        "wrong_numbers": Metric(
            "", "Elements of the result that differ from the exact sum, on the worst rank", counts=True
        ),
        "time": Metric("ms", "An all-reduce, from a barrier to an idle device, by the slowest rank", timed=True),
        "rank_spread": Metric("ms", "The slowest rank's time minus the fastest rank's", zero=True),
        "algorithm_bandwidth": Metric("GB/s", "Bytes that a rank contributes, divided by the time"),
        "bus_bandwidth": Metric("GB/s", "The same times 2 (n - 1) / n: the bytes that a ring sends over each link"),
    },
    "attention": {
        "forward": Metric("ms", "Forward pass, on the host's clock, from an idle device to an idle device", timed=True),
        "backward": Metric("ms", "Backward pass, in the same way", timed=True),
        **_WARMUP,
        "memory_before_backward": Metric("MiB", "Memory in use when the backward pass begins"),
        **_PEAK,
        **_PASSES_BUSY,
        **_BUSY,
    },
    "autocast_dtypes": {
        "parameters": Metric("dtype", "Of the parameters"),
        "fc1_output": Metric("dtype", "Of the first linear layer's output"),
        "norm_output": Metric("dtype", "Of the layer norm's output"),
        "logits": Metric("dtype", "Of the logits"),
        "loss": Metric("dtype", "Of the loss"),
        "gradients": Metric("dtype", "Of the parameters' gradients"),
    },
    "block_memory": {
        "saved": Metric(
            "MiB", "Activations of one shape and type that an operator saves for backward", part_of="saved_activations"
        ),
        "saved_activations": Metric("MiB", "All activations that the block saves for its backward pass"),
        "saved_weight_copies": Metric("MiB", "Copies of weights in a lower precision that it saves"),
        "parameter_gradients": Metric("MiB", "Gradients of the block's parameters"),
        "input_gradient": Metric("MiB", "Gradient of the block's input"),
        "left_by_forward": Metric("MiB", "Increase of the memory in use by the forward pass"),
        "left_by_backward": Metric("MiB", "Increase of the memory in use by both passes"),
    },
    "card": {
        "fact": Metric("fact", "A fact that the driver, or the operating system, reports before anything runs"),
        "rate": Metric("TFLOP/s", "FLOPs of a workload divided by its time, one sample per group of calls"),
        "bandwidth": Metric("GB/s", "Bytes that a workload moves divided by its time; a copy's bytes count twice"),
        "launch_rate": Metric("1/s", "Kernels, or operators of a CPU, launched one after another"),
        "token_rate": Metric("1/s", "Tokens of a training step divided by its time"),
        "wrong_numbers": Metric("", "Wrong elements of a result, if there are any", counts=True),
        "memory_clock": Metric("MHz", "Clock of the GPU's memory while the workload runs"),
        "temperature": Metric("°C", "Temperature of the GPU while the workload runs"),
        "link_generation": Metric("", "Generation of the PCIe link while the workload runs"),
        "link_width": Metric("", "Lanes of the PCIe link while the workload runs"),
        "throttled": Metric("share", "Share of the time in which the driver reports a throttle reason"),
    },
    "checkpointing": {
        **_PHASES,
        **_WARMUP,
        **_PEAK,
        "peak_forward": Metric("MiB", "Peak memory during the forward pass of one more step"),
        "peak_backward": Metric("MiB", "Peak memory during its backward pass"),
        "peak_optimizer": Metric("MiB", "Peak memory during its update"),
        "memory_before_step": Metric("MiB", "Memory in use when that step begins"),
        "memory_before_backward": Metric("MiB", "Memory in use when its backward pass begins"),
        "saved_for_backward": Metric("MiB", "Tensors that autograd saves in its forward pass, without parameters"),
        "block_calls": Metric(
            "", "Forward passes of a block in that step, including those of checkpoints", counts=True
        ),
    },
    "data_parallel": {
        **_STEPS,
        **_PROFILE,
        **_OBSERVED,
        **_PEAK,
        **_OUTSIDE,
        "communicated": Metric("MB", "Bytes that a rank contributes in a step, as the wrapper reports them"),
        "messages": Metric("", "Collectives that send them, as the wrapper reports them", counts=True),
        "launches": Metric("", "Kernels, copies, fills and graphs that the host launches in a step", counts=True),
        "host": Metric("ms", "Host time to issue a step without waiting for the device", timed=True),
    },
    "end_to_end": {
        **_PHASES,
        "first_step": Metric("ms", "The first of the timed steps"),
        **_PASSES_BUSY,
        "optimizer_busy": Metric("ms", "Device-busy time of the update", part_of="device_busy", unaffected=True),
        **_BUSY,
        "build": Metric("s", "Time to build the model and move it to the device", timed=True),
        **_WARMUP,
        **_PEAK,
        "device_allocations": Metric("", "Memory requests of the timed steps to the driver", counts=True),
        "compiled_graphs": Metric("", "Graphs that torch.compile captured", counts=True),
        "logits_dtype": Metric("dtype", "Of the logits"),
    },
    "flash": {
        "forward": Metric("ms", "Forward pass, with do_bench; on a CPU on the host's clock", timed=True),
        "backward": Metric("ms", "Backward pass, in the same way", timed=True),
        "forward_backward": Metric("ms", "Both in one call; on a CPU the sum of the two", timed=True),
        **_PEAK,
        "first_call": Metric("s", "The first call, which compiles", timed=True),
        "matmul": Metric("ms", "A matmul of two square matrices of 4096 rows", timed=True, unaffected=True),
        "host": Metric("us", "Host time of a call without waiting for the device", timed=True),
        "graph": Metric("ms", "Device time of both passes, replayed from a CUDA graph", timed=True),
        "handout": Metric("ms", "Both passes under the handout's protocol for its leaderboard", timed=True),
        "handout_sm_clock": Metric("MHz", "Clock of the GPU's SMs meanwhile"),
        "handout_power": Metric("W", "Power of the GPU meanwhile"),
        "launches": Metric("", "Kernels, copies and fills that both passes launch", counts=True),
        "rounding": Metric("dtype", "TF32, if your fp32 implementation is only as exact as TF32"),
    },
    "fsdp": {
        **_STEPS,
        **_OBSERVED,
        **_PROFILE,
        "forward_length": Metric("ms", "A separate forward pass, with the profiler"),
        "forward_gathers": Metric("ms", "Time in which all-gathers run in it", zero=True),
        "forward_hidden": Metric("ms", "Time in which all-gathers overlap with compute in it", zero=True),
        "gather_begins": Metric("ms", "When each all-gather begins, relative to the start of that pass", zero=True),
        "gather_ends": Metric("ms", "When each all-gather ends", zero=True),
        "needed": Metric("ms", "When the device is ready for the unit that needs each all-gather", zero=True),
        "begins": Metric("ms", "When the device starts the unit that needs each all-gather", zero=True),
        **_PEAK,
        "between_steps": Metric("MiB", "Memory in use between two steps: weights and optimizer state"),
        **_OUTSIDE,
    },
    "kernel_profile": {
        "kernel": Metric("us", "Each launch of a kernel; on a CPU each call of an operator", zero=True),
        "stage": Metric("ms", "A stage of a step, from the device's events", part_of="step", between=0.05),
        "stage_profiled": Metric("ms", "The same with the profiler", part_of="step_profiled", between=0.25),
        "stage_busy": Metric("ms", "Device-busy time of a stage, from the trace"),
        "stage_idle": Metric("ms", "Time without work from a stage's beginning to its last kernel's end", zero=True),
        "step": Metric("ms", "A step, on the host's clock", timed=True),
        "step_profiled": Metric("ms", "The same with the profiler"),
        "unattributed": Metric("", "Share of the kernels' time with an unknown stage or range"),
        "profile": Metric("s", "Time to record the profiled steps, and to write and read their trace", timed=True),
    },
    "leaderboard": {
        "step": Metric("ms", "A step whose update runs during the backward pass, by the slowest rank", timed=True),
        "forward_backward": Metric("ms", "Its passes, with dropped gradients, by the slowest rank", timed=True),
        "update": Metric(
            "ms", "Its update alone, including communication, by the slowest rank", timed=True, unaffected=True
        ),
        "device_busy": _BUSY["device_busy"],
        **_PEAK,
        "planned_memory": Metric(
            "MiB", "Memory that a rank needs by closed form, used to choose the blocks to recompute"
        ),
        "recomputed_blocks": Metric("", "Blocks that are recomputed in the backward pass", counts=True, zero=True),
        "cold_start": Metric("s", "Time from the process's start to the end of its first step"),
    },
    "memory_profile": {
        "peak_allocated": Metric("B", "Peak memory during the step, from PyTorch's counter"),
        "peak_replayed": Metric("B", "The same from its recorded allocations"),
        "peak_stage": Metric("stage", "The stage of this peak"),
        "at_peak": Metric("B", "Memory of a category at that moment", part_of="peak_replayed"),
        "most": Metric("B", "The maximum memory of a category at any time"),
        "stage_peak": Metric("B", "Peak memory during a stage"),
        "stage_end": Metric("B", "Memory of a category at a stage's end"),
        "stage_events": Metric("", "Allocations and frees of a stage", counts=True),
        "active": Metric("MiB", "Memory of a category, sampled over a stage in the order of time"),
        "allocation": Metric("B", "One of the largest allocations; similar ones are samples of one row"),
        "lifetime": Metric("ms", "Lifetimes of these, if they were freed in the step", zero=True),
        "residual_tensors": Metric("", "Allocations of the forward pass with the residual stream's size", counts=True),
    },
    "optimizer_sharding": {
        **_STEPS,
        "held": Metric("MiB", "Memory of tensors of a kind, one sample per rank"),
        "allocated": Metric("MiB", "All memory in use, including symmetric memory, one sample per rank"),
        "peak_memory": Metric("MiB", "Peak memory since the previous moment, one sample per rank"),
        **_PROFILE,
        **_OBSERVED,
    },
    "training_ladder": {
        "step": Metric(
            "ms",
            "A full training step, on the host's clock, from an idle device to an idle one; on a GPU in steady "
            "state: once 2.5 seconds of steps take as long as the previous 2.5",
            timed=True,
        ),
        "first_steps": Metric("ms", "The first steps of a rung's first turn, on a cooler GPU", timed=True),
        **_BUSY,
        "energy": Metric("J", "Energy of a step in steady state, from the driver's counter, one sample per turn"),
        "setup": Metric(
            "s", "Time to build a rung's model and run its first steps, with compilation and capture", timed=True
        ),
        "peak_memory": Metric(
            "MiB", "Peak memory during these steps, relative to the memory in use before the rung was built"
        ),
        "order": Metric("order", "Whether the rungs were timed interleaved, or one after another"),
        "weights_dtype": Metric("dtype", "Of the weights"),
        "attention_dtype": Metric("dtype", "Dtype of the queries passed to attention"),
        "floor": Metric(
            "ms", "A part of a bf16 or FP8 step alone: replayed from a CUDA graph, or its bytes at a copy's speed"
        ),
        "copy_speed": Metric("GB/s", "Bytes that a copy reads and writes, divided by its time"),
        "matmul_rate": Metric("TFLOP/s", "A matmul of two square matrices"),
        "loss_after": Metric("nat", "Mean loss of the last 20 steps of a training run, one sample per seed"),
        "entropy": Metric("nat", "The minimum loss that the data allow, by closed form"),
        "gradient_error": Metric("", "Difference of all gradients of a first step from fp32's, relative to fp32's"),
        "identical": Metric(
            "", "1 if two training runs from one seed end with bitwise identical weights, else 0", counts=True
        ),
    },
}
"""Metrics by experiment and name."""

DETAILS: Mapping[str, str] = {
    "about": "Name of the fact or of the throttle reason",
    "bucket_mb": "Size of the wrapper's buckets, 10⁶ bytes; empty for a wrapper without this option",
    "category": "Category of the memory or the kernel, such as weights or matmul",
    "code": "The source line as text",
    "contender": "Name of the optimizer",
    "device": "Number of the GPU, or two as in 0-1; empty for a CPU",
    "freed": "The stage in which it is freed; empty if not in the step",
    "kernel": "Short name of the kernel; those that take little time share a row",
    "kernels": "Names of the kernels that a call launches, in the order of their first launch",
    "kind": "Kind of work in a profile; or the part of the step to which a collective belongs, and its name",
    "moment": "When memory is measured: initialized, before_update or after_update",
    "operator": "The operator that creates the tensor",
    "part": "Category of the memory: parameters, gradients or optimizer_state",
    "range": "The module to whose forward pass it belongs, without numbers",
    "rank": "Place among the largest allocations, from 1",
    "rung": "Name of the rung, which is a setting of the training step",
    "source": "File and line of the code that creates it",
    "stage": "Part of the step: forward, loss, backward or optimizer",
    "tensor": "Type and shape",
    "work": "The part of a step, or the workload of a card, that is timed alone",
    "wrapper": "Name of the wrapper",
}
"""Meanings of detail columns, in all experiments that have them."""
