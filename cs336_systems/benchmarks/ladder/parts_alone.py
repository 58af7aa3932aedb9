"""The parts of a training step timed alone, each as fast as this device computes it.

Matmuls, attention and the update run at the model's own shapes and counts, in the order of a step, on random normal
data, since power depends on both. The rest of a step is memory-bound: its bytes divided by a copy's speed.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_work import all_pass_bytes, fp8_bytes, linear_maps
from cs336_systems.accounting.units import MIB
from cs336_systems.attention import flash_attention
from cs336_systems.benchmarks.ladder.steps import require
from cs336_systems.benchmarks.runner import require_kernels, rows_or_reason
from cs336_systems.experiments.training_ladder import FP8, TOP, TrainingLadder, rungs_of
from cs336_systems.measure.memory import release
from cs336_systems.measure.timing import time_phases
from cs336_systems.model import TransformerLM
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.cuda_graph import capture, run_on
from cs336_systems.training.fp8_formats import E4M3, E5M2
from cs336_systems.training.fp8_operands import matmul, round_operand

REPEATS = 5
WARMUP = 2
COPY_BYTES = {"cuda": 2048 * MIB, "cpu": 64 * MIB}
RATE_ROWS = {"cuda": 4096, "cpu": 512}
"""Size of the square matrices whose matmul is timed in fp32."""

FP8_WORK = "FP8 matmuls"

Call = Callable[[], object]


def measure_parts_alone(cell: TrainingLadder, device: torch.device) -> list[Measurement]:
    """Measure each part of a bf16 and of an FP8 step alone, and the rates that closed forms need."""
    step = TOP.setting(vars(cell))
    rows = []
    for part in (matmuls, attention, update):
        rows += rows_or_reason(partial(part, step, device), "floor", "ms", {"work": part.__name__})
        release(device)
    speed = copy_speed(device)
    if FP8 in rungs_of(cell.rungs):
        rows += rows_or_reason(partial(fp8_parts, cell, device, speed), "floor", "ms", {"work": FP8_WORK})
        release(device)
    side = RATE_ROWS[device.type]
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    seconds = time_replayed(lambda: a @ b, device)
    return [
        *rows,
        part_row("norms and elementwise", [all_pass_bytes(step) / speed]),
        summarize("copy_speed", "GB/s", [speed / 1e9]),
        summarize("matmul_rate", "TFLOP/s", [2e-12 * side**3 / lap for lap in seconds], details={"work": "fp32"}),
    ]


def part_row(work: str, seconds: list[float]) -> Measurement:
    """Make the row of a part."""
    return summarize("floor", "ms", [1e3 * lap for lap in seconds], details={"work": work})


def fp8_parts(cell: TrainingLadder, device: torch.device, speed: float) -> list[Measurement]:
    """Measure what an FP8 step does otherwise: matmuls in FP8, and rounding at a copy's speed in bytes/s."""
    require(FP8, device)
    step = FP8.setting(vars(cell))
    rounding = step.shape.num_layers * sum(fp8_bytes(step)) / speed
    return [
        part_row(FP8_WORK, time_matmuls(step, device, Fp8ProductTensors)),
        part_row("FP8 rounding", [rounding]),
    ]


def matmuls(step: Setting, device: torch.device) -> Iterator[Measurement]:
    """Time all matmuls of a step but attention's."""
    yield part_row("matmuls", time_matmuls(step, device, ProductTensors))


def time_matmuls(step: Setting, device: torch.device, kind: "type[ProductTensors]") -> list[float]:
    """Time all matmuls of a step but attention's in sequence, in seconds; blocks use operands of the given kind."""
    layers = step.shape.num_layers
    in_blocks = [kind(*widths, layers, step.tokens, device) for widths in linear_maps(step)]
    head = ProductTensors(step.shape.d_model, step.vocab_size, 1, step.tokens, device)

    def run() -> None:
        for layer in range(layers):
            for product in in_blocks:
                product.forward(layer)
        head.forward(0)
        head.backward(0)
        for layer in reversed(range(layers)):
            for product in reversed(in_blocks):
                product.backward(layer)

    return time_replayed(run, device)


class ProductTensors:
    """Operands and results of one kind of linear map; each block has separate weights and gradients."""

    def __init__(self, d_in: int, d_out: int, count: int, tokens: int, device: torch.device):
        def draw(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return torch.randn(rows, columns, device=device, dtype=torch.bfloat16).mul_(scale)

        self.x = draw(tokens, d_in)
        self.gradient = draw(tokens, d_out)
        self.weights = [draw(d_out, d_in, d_in**-0.5) for _ in range(count)]
        self.y, self.x_gradient = torch.empty_like(self.gradient), torch.empty_like(self.x)
        self.weight_gradients = [torch.empty_like(weight) for weight in self.weights]

    def forward(self, layer: int) -> None:
        """Compute y [tokens, d_out]."""
        torch.mm(self.x, self.weights[layer].T, out=self.y)

    def input_gradient(self, layer: int) -> None:
        """Compute the gradient of x [tokens, d_in]."""
        torch.mm(self.gradient, self.weights[layer], out=self.x_gradient)

    def weight_gradient(self, layer: int) -> None:
        """Compute the gradient of a block's weights [d_out, d_in]."""
        torch.mm(self.gradient.T, self.x, out=self.weight_gradients[layer])

    def backward(self, layer: int) -> None:
        """Compute both gradients."""
        self.input_gradient(layer)
        self.weight_gradient(layer)


class Fp8ProductTensors(ProductTensors):
    """The same in FP8: of each operand the rows and the columns, as an FP8 step keeps them."""

    def __init__(self, d_in: int, d_out: int, count: int, tokens: int, device: torch.device):
        super().__init__(d_in, d_out, count, tokens, device)
        self.operand = round_operand(self.x, E4M3, rowwise=False, columns=True)
        self.gradients = round_operand(self.gradient, E5M2, rowwise=False, columns=True)
        self.rounded = [round_operand(weight, E4M3, rowwise=False, columns=True) for weight in self.weights]

    def forward(self, layer: int) -> None:
        """Compute y [tokens, d_out]."""
        x, weight = self.operand, self.rounded[layer]
        matmul(x.rows, x.scale, weight.rows, weight.scale, torch.bfloat16, fast=True)

    def input_gradient(self, layer: int) -> None:
        """Compute the gradient of x [tokens, d_in]."""
        self._multiply(self.gradients.rows, self.rounded[layer].columns, self.rounded[layer].scale)

    def weight_gradient(self, layer: int) -> None:
        """Compute the gradient of a block's weights [d_out, d_in]."""
        self._multiply(self.gradients.columns, self.operand.columns, self.operand.scale)

    def _multiply(self, gradients: Tensor | None, other: Tensor | None, scale: Tensor) -> None:
        assert gradients is not None
        assert other is not None
        matmul(gradients, self.gradients.scale, other, scale, torch.bfloat16, fast=False)


def attention(step: Setting, device: torch.device) -> Iterator[Measurement]:
    """Time causal attention of all blocks, forward and backward, with this project's kernels."""
    require_kernels(device)
    shape = step.shape
    size = (step.batch_size, shape.num_heads, step.context, shape.d_model // shape.num_heads)
    q, k, v, gradient = (torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def blocks() -> None:
        for _ in range(shape.num_layers):
            torch.autograd.grad(flash_attention(q, k, v, is_causal=True), (q, k, v), gradient)

    yield part_row("attention", time_replayed(blocks, device))


def update(step: Setting, device: torch.device) -> Iterator[Measurement]:
    """Time AdamW over all weights in bf16, with split fp32 masters."""
    shape = step.shape
    with torch.device("meta"):
        model = TransformerLM(
            step.vocab_size, 1, shape.d_model, shape.num_layers, shape.num_heads, shape.d_ff, rope_theta=1.0
        )
    parameters = [
        nn.Parameter(torch.randn(each.shape, device=device, dtype=torch.bfloat16)) for each in model.parameters()
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = MasterAdamW(parameters)
    optimizer.prepare()
    yield part_row("update", time_replayed(optimizer.step, device))


def copy_speed(device: torch.device) -> float:
    """Bytes per second read and written by a pure copy kernel: a driver's copy is slower on an H200."""
    source = torch.randn(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(time_replayed(lambda: torch.neg(source, out=target), device))


def time_replayed(call: Call, device: torch.device) -> list[float]:
    """Time a call in seconds, replayed from a CUDA graph so that launches cost nothing; on a CPU directly."""

    def run() -> None:
        call()

    phase = captured(run, device) if device.type == "cuda" else run
    _, seconds = time_phases({"": phase}, warmup=WARMUP, steps=REPEATS, device=device)
    return seconds[""]


def captured(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture a call, after another call that compiles its kernels."""
    stream = torch.cuda.Stream(device)
    run_on(stream, run)
    return capture(stream, run)[0].replay
