"""Made-up kernel profiles."""

from collections.abc import Iterator

from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import H200, OOM, PEAK, jittered
from tests.samples.end_to_end import LAUNCHES, SHARE, launch_ms

LINEAR = [f"blocks.attention.{name}" for name in ("query", "key", "value", "output")]
LINEAR += [f"blocks.feed_forward.{name}" for name in ("gate", "up", "down")]
GEMM, SUM, SOFTMAX, MULTIPLY, COPY, FUSED = (
    ("nvjet_sm90_tst_192x192_64x3_2x1_v_bz_coopB_TNN", "aten::mm"),
    ("reduce_kernel: MeanOps", "aten::mean"),
    ("softmax_warp_forward", "aten::_softmax"),
    ("elementwise_kernel: MulFunctor", "aten::mul"),
    ("elementwise_kernel: direct_copy_kernel_cuda", "aten::copy_"),
    ("multi_tensor_apply_kernel: FusedAdamMathFunctor", "aten::_fused_adamw_"),
)
"""Names on a GPU and on a CPU."""


def measure(cell: KernelProfile, *, on_gpu: bool) -> list[Measurement]:
    """Stages as long as in the made-up training steps."""
    shape = parse_size(cell.size)
    if on_gpu and cell.mode == "train_step" and 1.3 * state_bytes(cell.mode, shape, 10_000) > H200["gpu_memory"]:
        return [OOM]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision)) * (0.8 if cell.compiled else 1) * SHARE[cell.attention]
    busy = {"forward": forward}
    if cell.mode == "train_step":
        optimizer = 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth
        busy = {"forward": 0.97 * forward, "loss": 0.03 * forward, "backward": 2 * forward, "optimizer": optimizer}
    # The host launches as fast as in the made-up training steps.
    launching = {stage: launch_ms(cell.context) * LAUNCHES.get(stage, 0) * shape.num_layers for stage in busy}
    if cell.compiled:
        launching = {stage: ms / 3 for stage, ms in launching.items()}
    whole_stage = {stage: 1.02 * max(busy[stage], launching[stage]) for stage in busy}
    laps = {stage: jittered(cell, stage, ms, cell.steps) for stage, ms in whole_stage.items()}
    steps = [sum(lap) for lap in zip(*laps.values(), strict=True)]
    rows = [
        summarize("step", "ms", steps),
        summarize("step_profiled", "ms", [1.2 * step for step in steps]),
        summarize("unattributed", "", [0.0]),
        summarize("profile", "s", jittered(cell, "profile", 1.0, 1)),
    ]
    for stage, milliseconds in laps.items():
        details = {"stage": stage}
        rows += [
            summarize("stage", "ms", milliseconds, details=details),
            summarize("stage_profiled", "ms", milliseconds, details=details),
            summarize("stage_busy", "ms", [busy[stage]] * cell.steps, details=details),
        ]
        if on_gpu:
            idle = [max(0.0, ms - busy[stage]) for ms in milliseconds]
            rows.append(summarize("stage_idle", "ms", idle, details=details))
    if not on_gpu:
        rows.append(Measurement(metric="stage_idle", unit="ms", status="skipped", message="on a CPU there is none"))
    for stage, ms in busy.items():
        made = list(kernels(cell, stage))
        whole = sum(weight for *_, weight in made)
        for range_, category, name, calls, weight in made:
            details = {"stage": stage, "range": range_, "category": category, "kernel": name[0 if on_gpu else 1]}
            duration = 1e3 * ms * weight / whole / calls
            rows.append(summarize("kernel", "us", [duration] * calls * cell.steps, keep=False, details=details))
    return rows


def kernels(cell: KernelProfile, stage: str) -> Iterator[tuple[str, str, tuple[str, str], int, float]]:
    """Range, category, names, launches and share of the kernels of a stage."""
    layers = parse_size(cell.size).num_layers
    if stage == "loss":
        yield "loss", "softmax", ("cunn_SoftMaxForwardSmem", "aten::_log_softmax"), 1, 0.9
        yield "loss", "reduction", ("nll_loss_forward_reduce_cuda_kernel_2d", "aten::nll_loss_forward"), 1, 0.1
        return
    if stage == "optimizer":
        yield "optimizer", "optimizer", FUSED, 3, 1.0
        return
    times = 2 if stage == "backward" else 1
    if cell.compiled:
        yield "compiled", "matmul", GEMM, times * (9 * layers + 1), 0.85
        yield "compiled", "elementwise", ("triton_poi_fused_mul_silu_3", "aten::mul"), times * layers, 0.15
        return
    for range_ in LINEAR:
        yield range_, "matmul", GEMM, times * layers, 0.08
    yield "lm_head", "matmul", GEMM, times, 0.03
    for norm in ("blocks.attention_norm", "blocks.feed_forward_norm", "final_norm"):
        yield norm, "normalization", SUM, (1 if norm == "final_norm" else layers) * times, 0.03
    yield "blocks.attention.rope", "elementwise", MULTIPLY, 8 * layers * times, 0.08
    yield "blocks.feed_forward", "elementwise", MULTIPLY, layers * times, 0.04
    yield "blocks.attention", "copy", COPY, 3 * layers * times, 0.02
    if stage == "backward":
        yield "gradient accumulation", "copy", COPY, layers, 0.01
    if cell.attention == "flash":
        name = "forward_kernel" if stage == "forward" else "backward_kernel"
        yield "blocks.attention", "attention", (name, "TiledFlashAttention"), layers, 0.05
        return
    yield "scores", "matmul", GEMM, layers * times, 0.04
    yield "scores", "elementwise", MULTIPLY, layers * times, 0.02
    yield "softmax", "elementwise", ("elementwise_kernel: masked_fill_kernel", "aten::masked_fill_"), layers, 0.03
    yield "softmax", "softmax", SOFTMAX, layers, 0.06
    yield "final product", "matmul", GEMM, layers * times, 0.04
