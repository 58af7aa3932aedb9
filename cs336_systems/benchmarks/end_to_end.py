"""Time a Transformer language model's forward pass, backward pass and whole training step.

Launch: python -m cs336_systems.benchmarks.end_to_end --size small --context 512 --precision fp32 bf16
"""

import contextlib
from collections.abc import Callable

import torch
import torch._dynamo  # which an optimizer would import while the model's build is timed
from torch import Tensor, nn

from cs336_systems.benchmarks.job import main
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.dtypes import dtype_name
from cs336_systems.measure.memory import peak_memory, reset_peak
from cs336_systems.measure.record import Measurement, summarize
from cs336_systems.measure.timing import Stopwatch, time_phases
from cs336_systems.model import ATTENTION, load_model_class
from cs336_systems.sizes import parse_size

ROPE_THETA = 10_000.0


def measure(cell: EndToEnd, device: torch.device) -> list[Measurement]:
    """Time of a step and of its phases, build and warm-up time, peak memory, and what ran in which precision."""
    reset_peak(device)
    stopwatch = Stopwatch(device)
    model = build_model(cell, device)
    tokens = torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1), device=device)
    step = TrainingStep(cell, model, tokens)
    build_seconds = stopwatch.lap()

    graphs_before = compiled_graphs()
    warmup_seconds, seconds = time_phases(step.phases(), warmup=cell.warmup, steps=cell.steps, device=device)
    step_seconds = [sum(laps) for laps in zip(*seconds.values(), strict=True)]
    return [
        *(summarize(phase, "ms", [1e3 * lap for lap in laps]) for phase, laps in seconds.items()),
        summarize("step", "ms", [1e3 * lap for lap in step_seconds]),
        summarize("first_step", "ms", [1e3 * step_seconds[0]]),
        summarize("build", "s", [build_seconds]),
        summarize("warmup", "s", [warmup_seconds]),
        peak_memory(device),
        summarize("compiled_graphs", "", [compiled_graphs() - graphs_before]),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value=dtype_name(step.logits_dtype)),
    ]


class TrainingStep:
    """The phases of a step, which share the loss: forward makes it, backward consumes it."""

    def __init__(self, cell: EndToEnd, model: nn.Module, tokens: Tensor):
        """`tokens` is [batch, context + 1]: inputs and the targets one position on."""
        self.cell = cell
        self.model = model
        self.forward_model = torch.compile(model) if cell.compiled else model
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True) if cell.mode == "train_step" else None
        self.loss: Tensor
        self.logits_dtype: torch.dtype

    def phases(self) -> dict[str, Callable[[], None]]:
        """The phases that the cell's mode has, in order."""
        phases = {"forward": self.forward, "backward": self.backward, "optimizer": self.update}
        last = {"forward": "forward", "forward_backward": "backward", "train_step": "optimizer"}[self.cell.mode]
        return {name: phases[name] for name in list(phases)[: list(phases).index(last) + 1]}

    def forward(self) -> None:
        """Logits and cross-entropy, with the graph that a backward pass needs in every mode."""
        with precision_context(self.cell.precision, self.inputs.device):
            logits = self.forward_model(self.inputs)
            self.loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
        self.logits_dtype = logits.dtype

    def backward(self) -> None:
        """Gradients, freshly allocated as a training loop with `zero_grad(set_to_none=True)` has them."""
        self.model.zero_grad(set_to_none=True)
        self.loss.backward()

    def update(self) -> None:
        """AdamW, fused into one kernel a group of parameters."""
        self.optimizer.step()


def build_model(cell: EndToEnd, device: torch.device) -> nn.Module:
    """The cell's model with random weights, made on the device: the largest would not fit a small host."""
    shape = parse_size(cell.size)
    # Only our own model is known to take an attention function; others bring theirs, whatever they call it.
    attention = {} if cell.attention == "plain" else {"attention": ATTENTION[cell.attention]}
    with device:
        return load_model_class(cell.model)(
            vocab_size=cell.vocab_size,
            context_length=cell.context,
            d_model=shape.d_model,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            d_ff=shape.d_ff,
            rope_theta=ROPE_THETA,
            **attention,
        )


def precision_context(precision: str, device: torch.device) -> contextlib.AbstractContextManager:
    """Autocast to bf16, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def compiled_graphs() -> int:
    """Graphs that torch.compile has captured so far."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


if __name__ == "__main__":
    main(EndToEnd, measure, "cs336_systems.benchmarks.end_to_end", check=lambda cell: load_model_class(cell.model))
