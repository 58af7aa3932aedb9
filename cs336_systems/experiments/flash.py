"""Parameters of the FlashAttention experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from cs336_systems.experiments.base import Experiment, Positive
from cs336_systems.experiments.contender import Contender
from cs336_systems.implementations import parse

REPLAYED = 4096
"""Up to this sequence length, device time is also measured in a replayed graph, since the host may be slower."""
FEW_QUERIES = 2**18
"""With more queries than this over all sequences and heads of a batch, calls are device-bound at any length."""
HANDOUT_WARMUP, HANDOUT_REP = 1000, 10_000
"""Milliseconds of warm-up and of timed calls in the handout's protocol for its leaderboard."""
MATMUL = 4096
"""Size of the square matrices of the reference matmul, which every cell times."""


@dataclass(frozen=True, kw_only=True)
class AttentionContender(Contender):
    """An implementation of attention.

    Its builder returns a function of q, k and v for a cell; a user's implementation is called directly with q, k, v and
    is_causal. Its precisions are the ones it supports on a GPU.
    """

    about: str = ""
    """Its description in the help text."""
    kernel: str = ""
    """Part of the name of a kernel that it launches on a GPU, in lower case; several contenders may share it."""
    backend: str = ""
    """The backend of scaled_dot_product_attention, by its name in SDPBackend."""
    compiler_mode: str | None = None
    """The mode of torch.compile, if it is compiled."""
    package: str = ""
    """The provenance column with the version of its library, if only it needs that library."""
    other_peak_up_to: int = 0
    """The sequence length above which its peak memory is a polynomial."""
    emphasized: bool = False
    """Whether figures draw it with a thick line."""


_BUILDERS = "cs336_systems.benchmarks.comparison.attention_builders"
CONTENDERS = (
    AttentionContender(
        name="triton",
        title="ours",
        about="this project's kernels",
        builder=f"{_BUILDERS}:ours",
        devices=("cuda",),
        kernel="forward_kernel",
        emphasized=True,
    ),
    AttentionContender(
        name="triton_compiled_backward",
        title="ours, backward in compiled PyTorch",
        about="its forward kernel with the backward pass in compiled PyTorch",
        builder=f"{_BUILDERS}:compiled_backward",
        devices=("cuda",),
        kernel="forward_kernel",
        other_peak_up_to=256,  # where the peak is reached before all scores exist
    ),
    AttentionContender(
        name="plain",
        title="plain",
        about="materializes the score matrix",
        builder=f"{_BUILDERS}:plain",
        kernel="softmax",
    ),
    AttentionContender(
        name="sdpa_flash",
        title="SDPA flash",
        about="PyTorch's scaled_dot_product_attention with its FlashAttention backend",
        builder=f"{_BUILDERS}:sdpa",
        foreign=True,
        precisions=("bf16",),
        kernel="flash_fwd_",
        backend="FLASH_ATTENTION",
        other_peak_up_to=REPLAYED,  # where its backward pass splits sequences among idle SMs, with memory for each part
    ),
    AttentionContender(
        name="sdpa_cudnn",
        title="SDPA cuDNN",
        about="the same with its cuDNN backend",
        builder=f"{_BUILDERS}:sdpa",
        foreign=True,
        devices=("cuda",),
        precisions=("bf16",),
        kernel="cudnn",
        backend="CUDNN_ATTENTION",
    ),
    AttentionContender(
        name="flex_autotuned",
        title="FlexAttention, autotuned",
        about="PyTorch's FlexAttention, compiled, with tiles chosen by timing",
        builder=f"{_BUILDERS}:flex",
        foreign=True,
        devices=("cuda",),
        kernel="flex_attention",
        compiler_mode="max-autotune-no-cudagraphs",  # no other implementation is replayed from CUDA graphs
    ),
    AttentionContender(
        name="flash_attention_4",
        title="FlashAttention-4",
        about="the package flash-attn-4, if installed",
        builder=f"{_BUILDERS}:flash_attention_4",
        foreign=True,
        devices=("cuda",),
        precisions=("bf16",),
        kernel="flash_attncute",
        package="flash_attn",
    ),
    AttentionContender(
        name="tiled",
        title="ours (PyTorch)",
        about="this project's PyTorch version",
        builder=f"{_BUILDERS}:tiled",
        emphasized=True,
    ),
)
"""All contenders, in the order of tables and legends."""


def contender_of(implementation: str) -> AttentionContender:
    """Look up the contender of a cell or a row.

    Raises:
        ValueError: no such contender exists, in one sentence.
    """
    if "=" in implementation:
        own = parse(implementation)
        return AttentionContender(name=own.text, title=own.name, builder=own.path, own=True)
    known = {contender.name: contender for contender in Flash.contenders}
    if implementation not in known:
        allowed = f"{', '.join(known)}, or your own as NAME=package.module:name"
        raise ValueError(f"implementation is {implementation!r}; allowed: {allowed}")
    return known[implementation]


def _known(implementation: str) -> str:
    contender_of(implementation)
    return implementation


@dataclass(frozen=True, kw_only=True)
class Flash(Experiment):
    """Time attention implementations against each other: forward, backward and both; with peak memory."""

    name: ClassVar[str] = "flash"
    details: ClassVar[tuple[str, ...]] = ("kernels",)
    contenders: ClassVar[tuple[AttentionContender, ...]] = CONTENDERS
    more_help: ClassVar[Mapping[str, str]] = {
        "implementation": "; ".join(f"{contender.name}: {contender.about}" for contender in CONTENDERS)
        + "; NAME=package.module:name: your own function or autograd.Function."
    }
    timed: ClassVar[str] = "forward_backward"
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "attention.test_attention",
        "attention.test_attention_gpu",
        "attention.test_attention_hopper",
    )
    added_later: ClassVar[Mapping[str, Any]] = {"batch_size": 1, "causal": True, "kernels": ""}

    sequence: Positive = 1024
    """Sequence length of queries and keys."""
    d: Positive = 64
    """Head dimension."""
    heads: Positive = 1
    """Number of heads."""
    batch_size: Positive = 1
    """Sequences per batch."""
    causal: bool = True
    """Whether a query sees only the keys up to its own position."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Dtype of the inputs; fp32 has TF32 off."""
    compiled_call: bool = False
    """Whether the attention function runs through torch.compile, as on the leaderboard; if so, it is also timed with
    the handout's protocol."""
    rep: Positive = 100
    """Milliseconds of timed calls that do_bench aims for; on a CPU, ten calls are timed."""
    implementation: Annotated[str, AfterValidator(_known)] = "triton"
    """The implementation. Your own is called with q, k and v of [batch x heads, sequence, d], and is_causal."""

    @property
    def contender(self) -> AttentionContender:
        """The declaration of the cell's implementation."""
        return contender_of(self.implementation)


def replayed(batch_size: Any, heads: Any, sequence: Any) -> Any:
    """Whether a cell's device time is measured in a replayed graph; accepts numbers, or columns of a table."""
    return (sequence <= REPLAYED) & (batch_size * heads * sequence <= FEW_QUERIES)
