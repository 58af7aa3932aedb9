"""The question that `python -m cs336_systems.fit` answers: its command line, checked like an experiment's."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import AfterValidator, AllowInfNan, ConfigDict

from cs336_systems.experiments.base import Positive, Size
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.fit.presets import PRESETS
from cs336_systems.fit.recorded import recorded
from cs336_systems.measure.gpus import listed
from cs336_systems.sizes import SIZES, size_name

HANDOUTS_VOCABULARY = 10_000
"""Vocabulary of the handout's sizes."""


def _known_model(model: str) -> str:
    if model not in PRESETS and not re.fullmatch(r"[\w.]+:\w+", model):
        raise ValueError(f"model is {model!r}; allowed: {', '.join(PRESETS)}, or a class as package.module:Class")
    return model


Count = Annotated[Positive, Le(2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class Question:
    """Predict which training configurations of a language model fit into a GPU's memory, and how long a step takes."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, revalidate_instances="always")

    model: Annotated[str, AfterValidator(_known_model)] = EndToEnd.model
    """A published model by name (llama-3-8b, qwen2.5-7b, gpt2 and others), or your own class as package.module:Class
    with TransformerLM's arguments; both are traced on PyTorch's meta device. Default: the handout's model."""
    size: Size | None = None
    """Size of the handout's model or of your own class (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or a
    shape as NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N; small if not given."""
    context: Count = 512
    """Tokens per sequence."""
    batch_size: Count = 4
    """Sequences per GPU."""
    vocab_size: Count | None = None
    """Vocabulary size: by default the published model's, or 10 000 for the handout's sizes; required for your own
    shape."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """fp32 with TF32 off, or bf16: autocast over fp32 weights, and bf16 weights with fp32 masters."""
    attention: Literal["plain", "flash", "sdpa"] = "flash"
    """For the handout's model: plain materializes the score matrix; flash and sdpa keep no scores. Fused steps are
    shown only with flash."""
    gpus: Annotated[Positive, Le(2**20)] = 1
    """Number of GPUs."""
    gpu: Annotated[str, AfterValidator(lambda gpu: listed(gpu).name)] = recorded().gpu
    """The GPU model, as `nvidia-smi -L` prints it or a short name, such as RTX 4090 or A100 40GB PCIe."""
    price: Annotated[float, Gt(0), AllowInfNan(False)] | None = None
    """Price of a GPU-hour in any currency; adds the price per million tokens."""

    @property
    def shape_name(self) -> str:
        """The size of the handout's model."""
        return self.size or "small"

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding of a model with the handout's shape."""
        return self.vocab_size or HANDOUTS_VOCABULARY

    @property
    def title(self) -> str:
        """The model in words."""
        if self.model in PRESETS:
            return self.model
        own = "" if self.model == EndToEnd.model else f"{self.model}, "
        return f"{own}{size_name(self.shape_name)}, vocabulary {self.vocabulary}"


def refuse_contradictions(question: Question) -> None:
    """Check values of a question that exclude or require each other.

    Raises:
        ValueError: they do, in one sentence.
    """
    if question.model != EndToEnd.model and question.attention != Question.attention:
        raise ValueError(f"attention is {question.attention!r}, but {question.model} has its own; leave attention out")
    if question.model in PRESETS:
        for name in ("size", "vocab_size"):
            if (value := getattr(question, name)) is not None:
                raise ValueError(f"{name} is {value!r}, but {question.model} has its own; leave {name} out")
        longest = PRESETS[question.model].context
        if question.context > longest:
            raise ValueError(f"context is {question.context}; {question.model} allows whole numbers up to {longest}")
    elif question.vocab_size is None and question.shape_name not in SIZES:
        raise ValueError("vocab_size is missing: your own shape requires it; allowed: whole numbers from 1")
