"""Observe the data types in a toy model under autocast.

Launch: python -m cs336_systems.benchmarks autocast_dtypes --autocast fp16 bf16
"""

import torch
from torch import Tensor, nn

from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from cs336_systems.measure.dtypes import DTYPES, dtype_name
from cs336_systems.record.measurement import Measurement

D_IN, D_HIDDEN, D_OUT, BATCH = 20, 10, 5, 8


class ToyModel(nn.Module):
    """Linear, ReLU, LayerNorm, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(D_IN, D_HIDDEN, bias=False)
        self.norm = nn.LayerNorm(D_HIDDEN)
        self.fc2 = nn.Linear(D_HIDDEN, D_OUT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, D_IN] to logits [batch, D_OUT]."""
        return self.fc2(self.norm(torch.relu(self.fc1(x))))


def measure(cell: AutocastDtypes, device: torch.device) -> list[Measurement]:
    """Observe the dtypes of parameters, first layer's output, norm's output, logits, loss and gradients."""
    with device:
        model = ToyModel()
        inputs, targets = torch.randn(BATCH, D_IN), torch.randint(D_OUT, (BATCH,))
    seen: dict[str, torch.dtype] = {"parameters": model.fc1.weight.dtype}
    for component, layer in {"fc1_output": model.fc1, "norm_output": model.norm}.items():
        layer.register_forward_hook(lambda _layer, _inputs, output, key=component: seen.update({key: output.dtype}))
    with torch.autocast(device.type, dtype=DTYPES[cell.autocast]):
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, targets)
    loss.backward()
    seen |= {"logits": logits.dtype, "loss": loss.dtype}
    gradients = {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None}
    assert len(gradients) == 1, gradients
    seen["gradients"] = gradients.pop()
    return [
        Measurement(metric=component, unit="dtype", n=1, value=dtype_name(dtype)) for component, dtype in seen.items()
    ]
