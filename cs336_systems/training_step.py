"""One step of training a language model, in the phases that experiments time, profile and trace."""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

PHASES_OF_MODE = {
    "inference": ("forward",),
    "forward": ("forward",),
    "forward_backward": ("forward", "backward"),
    "train_step": ("forward", "backward", "optimizer"),
}
"""The phases of each kind of step. inference computes logits under no_grad; in the others, forward computes the
loss."""


class TrainingStep:
    """The phases of a step, which share the loss: forward computes it, backward consumes it."""

    def __init__(
        self,
        model: nn.Module,
        tokens: Tensor,
        *,
        precision: str = "fp32",
        compiled: bool = False,
        optimizer: Optimizer | None = None,
    ):
        """Prepare a step; nothing runs yet.

        Args:
            model: token ids [batch, context] to logits [batch, context, vocabulary].
            tokens: [batch, context + 1] integers: the inputs, and the targets one position later.
            precision: fp32, or bf16 for autocast over the unchanged weights.
            compiled: whether the model runs through torch.compile.
            optimizer: updates the model's parameters; needed only for the phase `optimizer`.
        """
        self.model = model
        self.forward_model = torch.compile(model) if compiled else model
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        self.precision = precision
        self.optimizer = optimizer
        self.logits: Tensor | None = None
        self.loss: Tensor | None = None
        self.logits_dtype: torch.dtype  # of the last forward pass

    def phases(self, mode: str) -> dict[str, Callable[[], None]]:
        """The phases of a kind of step (a key of PHASES_OF_MODE), in order."""
        forward = self.infer if mode == "inference" else self.forward
        phases = {"forward": forward, "backward": self.backward, "optimizer": self.update}
        return {name: phases[name] for name in PHASES_OF_MODE[mode]}

    def stages(self, mode: str) -> dict[str, Callable[[], None]]:
        """The same work as `phases`, with the loss as a separate stage, if there is one."""
        phases = self.phases(mode)
        if mode == "inference":
            return phases
        del phases["forward"]
        return {"forward": self.make_logits, "loss": self.make_loss, **phases}

    def infer(self) -> None:
        """Compute logits, without a graph."""
        with torch.no_grad():
            self.make_logits()

    def forward(self) -> None:
        """Compute logits and cross-entropy, with the graph for a backward pass."""
        self.make_logits()
        self.make_loss()

    def make_logits(self) -> None:
        """Compute the model's output."""
        # First free the last step's gradients and graph, like a loop that begins with zero_grad: they must not be in
        # memory together with this step's activations.
        self.loss = self.logits = None
        self.model.zero_grad(set_to_none=True)
        with precision_context(self.precision, self.inputs.device):
            self.logits = self.forward_model(self.inputs)
        if not isinstance(self.logits, Tensor):
            raise TypeError(f"the model's output is a {type(self.logits).__name__}; allowed: logits, a tensor")
        self.logits_dtype = self.logits.dtype

    def make_loss(self) -> None:
        """Compute cross-entropy of the logits, which from here on are kept only by the graph."""
        assert self.logits is not None, "the logits come first"
        logits, self.logits = self.logits, None
        with precision_context(self.precision, self.inputs.device):
            self.loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())

    def backward(self) -> None:
        """Compute gradients in freshly allocated memory."""
        assert self.loss is not None, "forward comes first"
        self.loss.backward()

    def update(self) -> None:
        """Run the optimizer's step."""
        assert self.optimizer is not None, "the step has no optimizer"
        self.optimizer.step()


def precision_context(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast to bf16, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
