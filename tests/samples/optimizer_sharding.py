"""Made-up training with sharded optimizers."""

from pandas import Series

from cs336_systems.accounting import optimizer_sharding as forms
from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import PHASE_STEPS, TIMELINE_PARTS
from cs336_systems.experiments.optimizer_sharding import MOMENTS, OptimizerSharding
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from scripts.views.closed_forms import step_of
from tests.samples import PEAK, jittered, observed
from tests.samples.all_reduce import BUS

WAITS = {
    "unsharded": 0.8,
    "sharded": 0.9,
    "sharded_symmetric_memory": 0.7,
    "sharded_gradients": 0.6,
    "sharded_gradients_symmetric_memory": 0.5,
    "zero_redundancy": 1.4,
    "zero_redundancy_view": 1.2,
    "zero_redundancy_views": 1.1,
}
"""The share of its communication that a contender waits for."""
SCHEMES = {
    "unsharded": "data parallel",
    "sharded_gradients": "ZeRO-2",
    "sharded_gradients_symmetric_memory": "ZeRO-2",
}
NOT_ON_CPU = [
    Measurement(metric=metric, unit=OptimizerSharding.metrics[metric], status="skipped", message="on CUDA devices only")
    for metric in ("device_busy", "allocated", "peak_memory")
]


def measure(cell: OptimizerSharding, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak, and of each contender's communication a share in addition."""
    rows = [row for contender in WAITS for row in contender_rows(cell, contender, on_gpu=on_gpu)]
    return rows if on_gpu else [*rows, *NOT_ON_CPU]


def contender_rows(cell: OptimizerSharding, contender: str, *, on_gpu: bool) -> list[Measurement]:
    """All that is measured of a contender."""
    shape = parse_size(cell.size)
    scheme = forms.SCHEMES[SCHEMES.get(contender, "sharded optimizer")]
    whole = forms.fp32_adamw(shape, cell.vocab_size)
    details = {"contender": contender}
    communication = 1e3 * scheme.sent(whole, cell.processes) / BUS["nccl" if on_gpu else "gloo"]
    waits = WAITS[contender] * communication / 2
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision))
    state = state_bytes("train_step", shape, cell.vocab_size)
    update = 1e3 * state / PEAK.bandwidth / (cell.processes if scheme.shards_state else 1)
    phases = {"forward": forward, "backward": 2 * forward}
    if not contender.startswith("zero"):
        phases["synchronization"] = waits / 2
    phases["optimizer"] = update + waits / 2
    step = 3 * forward + update + waits
    rows = [
        *observed(cell, details),
        summarize("step", "ms", jittered(cell, f"step {contender}", step, cell.rounds * cell.steps), details=details),
        *(
            summarize(name, "ms", jittered(cell, f"{name} {contender}", time, PHASE_STEPS), details=details)
            for name, time in phases.items()
        ),
        *(row for moment in MOMENTS for row in memory_rows(cell, contender, moment, on_gpu=on_gpu)),
    ]
    if on_gpu:
        times = {
            "device_busy": step,
            "compute": step - waits,
            "communication": communication,
            "hidden": communication - waits,
            "timeline_length": step,
        }
        rows += [summarize(name, "ms", [time], details=details) for name, time in times.items()]
        rows += [
            summarize("timeline", "share", [share] * TIMELINE_PARTS, details=details | {"kind": kind})
            for kind, share in {"compute": 0.5, "communication": communication / step, "optimizer": 0.5}.items()
        ]
    return rows


def memory_rows(cell: OptimizerSharding, contender: str, moment: str, *, on_gpu: bool) -> list[Measurement]:
    """The memory that ranks hold by the closed form, with twenty MiB for the rest."""
    whole = forms.fp32_adamw(parse_size(cell.size), cell.vocab_size)
    scheme = forms.SCHEMES[SCHEMES.get(contender, "sharded optimizer")]
    own = scheme.memory(whole, cell.processes)
    trained = moment != MOMENTS[0]
    parts = {
        "parameters": own.parameters,
        "gradients": trained * own.gradients,
        "optimizer_state": trained * own.optimizer_state,
    }
    details = {"contender": contender, "moment": moment}
    rows = [on_each_rank(cell, "held", count, details | {"part": part}) for part, count in parts.items()]
    if on_gpu:
        in_use = sum(parts.values()) + 20 * MIB
        row = Series({**vars(cell), "gpu": "NVIDIA H200", "attention": "plain", "segment": 0})
        peak = 1.01 * forms.peak(scheme, step_of(row), cell.processes) if moment == MOMENTS[1] else in_use
        rows += [
            on_each_rank(cell, "allocated", in_use, details),
            on_each_rank(cell, "peak_memory", max(peak, in_use), details),
        ]
    return rows


def on_each_rank(cell: OptimizerSharding, metric: str, count: float, details: dict[str, str]) -> Measurement:
    """The same number on every rank."""
    return summarize(metric, "MiB", [count / MIB] * cell.processes, details=details)
