"""The question that `python -m cs336_systems.fit` answers: its command line, checked as experiments' are."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict

from cs336_systems.experiments.base import ModelClass, Positive, Size
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.fit.recorded import recorded
from cs336_systems.measure.gpus import listed


def _spelt_out(gpu: str) -> str:
    return listed(gpu).name


@dataclass(frozen=True, kw_only=True)
class Question:
    """Tell which ways to train a Transformer language model fit into a GPU's memory, and how long a step takes."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, revalidate_instances="always")

    size: Size = "small"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or a shape of your own as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 512
    """Tokens per sequence."""
    batch_size: Positive = 4
    """Sequences per GPU."""
    vocab_size: Positive = 10_000
    """Rows of the embedding and of the output head."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """fp32 with TF32 off, or bf16: autocast over fp32 weights, and bf16 weights with fp32 masters."""
    attention: Literal["plain", "flash", "sdpa"] = "flash"
    """plain materializes the score matrix; flash and sdpa keep no scores. Fused steps are shown with flash alone."""
    gpus: Positive = 1
    """GPUs that train together."""
    gpu: Annotated[str, AfterValidator(_spelt_out)] = recorded().gpu
    """The GPU model, as nvidia-smi -L prints it or in short: RTX 4090, A100 40GB PCIe."""
    model: ModelClass = EndToEnd.model
    """The model class, as package.module:Class. Of another than TransformerLM the weights are counted on PyTorch's meta
    device, and activations are taken to be TransformerLM's."""
