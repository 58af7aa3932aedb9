"""Made-up memory profiles."""

from pandas import Series

from cs336_systems.accounting.peak_memory import peak as step_peak
from cs336_systems.accounting.transformer import adamw_bytes, parameters, residual_bytes, weight_copy_bytes
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.fit.cells import step_setting
from cs336_systems.measure import memory_timeline as of
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from scripts.views.closed_forms import step_of
from tests.samples import H200, NEEDS_GPU, OOM

STAGES = {
    "inference": [of.FORWARD],
    "forward": [of.FORWARD, of.LOSS],
    "train_step": [of.FORWARD, of.LOSS, of.BACKWARD, of.OPTIMIZER],
}
POINTS = 8


def measure(cell: MemoryProfile, *, on_gpu: bool) -> list[Measurement]:
    """Closed forms for what has one; nothing on a CPU."""
    if not on_gpu:
        return [NEEDS_GPU]
    shape, stages = parse_size(cell.size), STAGES[cell.mode]
    trains = cell.mode == "train_step"
    residual = residual_bytes(shape, cell.batch_size, cell.context)
    scores = FP32_BYTES * cell.batch_size * shape.num_heads * cell.context**2
    most = {
        of.PARAMETERS: FP32_BYTES * parameters(shape, cell.vocab_size),
        of.OPTIMIZER_STATE: adamw_bytes(shape, cell.vocab_size) * trains,
        of.GRADIENTS: FP32_BYTES * parameters(shape, cell.vocab_size) * trains,
        of.WEIGHT_COPIES: weight_copy_bytes(shape, cell.vocab_size) * (cell.precision == "bf16"),
        of.ACTIVATIONS: 0,
        of.TEMPORARIES: 2 * residual,
        of.WORKSPACES: 32 * MIB,
        of.ROUNDING: 100 * MIB,
    }
    if cell.mode != "inference":
        row = Series({**vars(cell), "gpu": "NVIDIA H200", "segment": 0})
        most[of.ACTIVATIONS] = step_of(row).saved_for_backward - most[of.WEIGHT_COPIES]
    most = {category: size for category, size in most.items() if size}
    known = step_peak(step_setting(cell.name, cell)).total
    stays = {name: most[name] for name in (of.PARAMETERS, of.OPTIMIZER_STATE) if name in most}
    share = (known - sum(stays.values())) / (sum(most.values()) - sum(stays.values()))
    at_peak = {category: round(share * size) for category, size in most.items()} | stays
    if share > 1:  # Nothing but activations and the like may be more than its closed form.
        at_peak = most | {of.ROUNDING: most[of.ROUNDING] + known - sum(most.values())}
    most = {category: max(size, at_peak[category]) for category, size in most.items()}
    peak = sum(at_peak.values())
    if peak > H200["gpu_memory"]:
        return [OOM]
    rows = [
        summarize("peak_allocated", "B", [peak]),
        summarize("peak_replayed", "B", [peak]),
        Measurement(metric="peak_stage", unit="stage", n=1, value=stages[-1] if not trains else of.BACKWARD),
    ]
    for category in most:
        rows.append(summarize("at_peak", "B", [at_peak[category]], details={"category": category}))
        rows.append(summarize("most", "B", [most[category]], details={"category": category}))
    for stage in stages:
        events = 0 if stage == of.OPTIMIZER else 100
        rows.append(summarize("stage_peak", "B", [peak], details={"stage": stage}))
        rows.append(summarize("stage_events", "", [events], details={"stage": stage}))
        for category, size in at_peak.items():
            points = POINTS if events else 1
            ramp = [size / MIB * (point + 1) / points for point in range(points)]
            details = {"stage": stage, "category": category}
            rows.append(summarize("active", "MiB", ramp, details=details))
            rows.append(summarize("stage_end", "B", [size], details=details))
    return rows + allocations(cell, scores, residual)


def allocations(cell: MemoryProfile, scores: int, residual: int) -> list[Measurement]:
    """The scores and the additions to the residual stream."""
    layers = parse_size(cell.size).num_layers
    line = "cs336_systems/attention/plain.py:27 plain_attention"
    details = {
        "stage": of.FORWARD,
        "category": of.TEMPORARIES,
        "freed": of.FORWARD,
        "operator": "bmm",
        "source": line,
        "code": "q @ k",
    }
    found = [
        summarize("allocation", "B", [scores] * layers, keep=False, details=details | {"rank": "1"}),
        summarize("lifetime", "ms", [0.5] * layers, keep=False, details=details | {"rank": "1"}),
    ]
    for line in (154, 155):
        where = {"stage": of.FORWARD, "operator": "add", "source": f"cs336_systems/model.py:{line} forward"}
        found.append(summarize("residual_tensors", "", [layers], details=where))
    where = {"stage": of.FORWARD, "operator": "embedding", "source": "cs336_systems/model.py:200 forward"}
    return [*found, summarize("residual_tensors", "", [1], details=where)]
