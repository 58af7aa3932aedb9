"""The cases of each family, and their reference results, computed here from equations or in one process.

Cases of the handout follow from its tasks: powers of two from 16, fp32, errors up to 1e-2, two ranks, and for FSDP
ranks that start with equal weights. Cases beyond it occur in practice.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cs336_systems.benchmarks.comparison.exact_attention import RESULTS, TF32, exact_attention, largest_error
from cs336_systems.benchmarks.comparison.exact_attention import TOLERANCE as EXACT
from cs336_systems.verify import models
from cs336_systems.verify.launcher import Answer
from cs336_systems.verify.worker import momentum, parts, train_with

Given = list[dict[str, Tensor]]
"""Tensors by name for each rank."""
Shapes = Mapping[str, tuple[int, ...]]
Requirement = Literal["handout", "beyond"]
Outcome = Literal["passed", "failed", "unsupported", "cannot run here", "crashed", "timed out"]
Finding = tuple[Outcome, str]
RIGHT: Finding = ("passed", "")
IGNORES_MASK = "it ignores is_causal"
HANDOUT_ERROR = 1e-2
"""The tolerance of the handout's tests of attention."""
STEPS = 3
FP32_WAY, BF16_WAY = 2.0**-10, 2.0**-4
"""Allowed errors of weights after training, relative to their change: other orders of addition in fp32; repeated
rounding of gradients to bf16."""
ROUNDING = 2.0**-20
"""Norm up to which an error may be rounding: a scalar's gradient may nearly cancel out, and its change be as small."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a family."""

    family: str
    requirement: Requirement
    words: str
    """Its name on pages and terminals."""
    ranks: int = 1
    header: Mapping[str, Any] = field(default_factory=dict, hash=False)
    give: Callable[["Case", torch.Generator], Given] = field(hash=False)
    check: Callable[["Case", Given, list[Answer]], Finding] = field(hash=False)


def failed(reason: str) -> Finding:
    """Results are wrong."""
    return "failed", reason


# --- attention --------------------------------------------------------------------------------------------------------

MASKS = {False: "all keys", True: "causal"}


def attention_case(
    requirement: Requirement, words: str, shape: tuple[int, int, int], causal: bool, **options: Any
) -> Case:
    """A case of attention: [heads, sequence, d] of one dtype."""
    usual = {"backward": True, "dtype": "float32", "scale": 1.0, "strided": False}
    return Case(
        family="attention",
        requirement=requirement,
        words=f"{words} ({list(shape)}, {MASKS[causal]})",
        header={"causal": causal, "shape": shape, **usual, **options},
        give=give_attention,
        check=check_attention,
    )


def give_attention(case: Case, generator: torch.Generator) -> Given:
    """Random q, k, v and gradient of the output."""
    header, (heads, sequence, d) = case.header, case.header["shape"]
    dtype = getattr(torch, header["dtype"])
    if header["strided"]:
        return [{"qkv": torch.randn(sequence, 3, heads, d, generator=generator).to(dtype)}]
    q, k, v, grad_o = (torch.randn(heads, sequence, d, generator=generator).to(dtype) for _ in range(4))
    return [{"q": header["scale"] * q, "k": header["scale"] * k, "v": v, "grad_o": grad_o}]


def check_attention(case: Case, given: Given, answers: list[Answer]) -> Finding:
    """Compare with attention in float64: within 1e-2 in the handout's cases, else as exactly as fp32 or bf16 allow."""
    [inputs], [answer], header = given, answers, case.header
    if header["strided"]:
        q, k, v = (part.movedim(0, 1) for part in inputs["qkv"].unbind(1))
        matrices = [q, k, v, torch.ones(()).expand(q.shape)]
    else:
        matrices = [inputs[name] for name in ("q", "k", "v", "grad_o")]
    names = RESULTS if header["backward"] else RESULTS[:1]
    exact = dict(zip(RESULTS, exact_attention(*matrices, is_causal=header["causal"]), strict=True))
    tolerance = HANDOUT_ERROR if case.requirement == "handout" else EXACT[matrices[0].dtype]
    note = ""
    for name in names:
        result = answer.tensors.get(name)
        if result is None or result.shape != exact[name].shape:
            shape = "missing" if result is None else list(result.shape)
            return failed(f"its {name} is {shape}, not {list(exact[name].shape)}")
        if result.dtype != matrices[0].dtype:
            return failed(f"its {name} is {result.dtype}, but its inputs are {matrices[0].dtype}")
        worst = largest_error(result, exact[name], matrices[3])
        if not worst.error <= tolerance:
            if header["causal"] and (ignoring := ignoring_mask(answer.tensors, matrices)):
                if len(ignoring) == len(names):
                    return "unsupported", IGNORES_MASK
                return failed(f"{IGNORES_MASK} in {', '.join(ignoring)}, but not in its other results")
            return failed(f"its {worst.off(name, tolerance)}, {worst}")
        if result.dtype == torch.float32 and worst.error > EXACT[torch.float32]:
            note = TF32
    return "passed", note


def ignoring_mask(results: Mapping[str, Tensor], matrices: Sequence[Tensor]) -> list[str]:
    """The results that equal attention to all keys."""
    exact = dict(zip(RESULTS, exact_attention(*matrices, is_causal=False), strict=True))
    same = {name: result for name, result in results.items() if result.shape == exact[name].shape}
    return [name for name in same if largest_error(same[name], exact[name], matrices[3]).error <= HANDOUT_ERROR]


def attention_cases() -> Iterator[Case]:
    """Cases of attention."""
    for causal in (False, True):
        for shape in ((4, 128, 64), (2, 256, 32), (1, 64, 128), (3, 16, 16)):
            yield attention_case("handout", "fp32 forward", shape, causal, backward=False)
        for shape in ((4, 128, 64), (2, 256, 32)):
            yield attention_case("handout", "fp32 forward and backward", shape, causal)
        for dtype, name in (("float32", "exact fp32"), ("bfloat16", "bf16")):
            yield attention_case("beyond", name, (2, 128, 64), causal, dtype=dtype)
            for shape in ((3, 77, 16), (2, 300, 32), (1, 1, 16), (5, 65, 128)):
                yield attention_case(
                    "beyond", f"{name}, length not a multiple of the tile size", shape, causal, dtype=dtype
                )
        yield attention_case("beyond", "scores with overflowing exponentials", (2, 128, 32), causal, scale=5.0)
        yield attention_case("beyond", "non-contiguous inputs", (2, 128, 16), causal, strided=True)


# --- training ---------------------------------------------------------------------------------------------------------


@cache
def shapes_of(model: str) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters, by name."""
    return {name: tuple(p.shape) for name, p in models.MODELS[model](models.Layers()).named_parameters()}


def random_weights(model: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Initial values of a model's parameters."""
    return {f"weight.{name}": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes_of(model).items()}


def give_training(case: Case, generator: torch.Generator) -> Given:
    """Initial weights and batches: each rank's part, and its own weights if ranks start differently."""
    header = case.header
    first = random_weights(header["model"], generator)
    batches = {
        f"batch.{step}": torch.randint(models.VOCABULARY, (12, models.CONTEXT + 1), generator=generator)
        for step in range(header["steps"])
    }
    given = []
    for rank in range(case.ranks):
        own = first if rank == 0 or header["alike"] else random_weights(header["model"], generator)
        given.append(own | {name: batch.chunk(case.ranks)[rank] for name, batch in batches.items()})
    return given


@dataclass(frozen=True)
class Alone:
    """A model trained by one process on the whole batch."""

    start: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Gradients of the first step; parameters without one are left out."""
    end: dict[str, Tensor]


def trained_alone(case: Case, given: Given) -> Alone:
    """Train in this process, on the batches of all ranks."""
    model = models.build(case.header["model"], models.Layers(), parts(given[0], "weight"), torch.device("cpu"))
    optimizer = momentum(model)
    start, gradients = values(model), {}
    for step in range(case.header["steps"]):
        optimizer.zero_grad()
        models.loss(model, torch.cat([rank[f"batch.{step}"] for rank in given])).backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return Alone(start, gradients, values(model))


def values(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def relative(off: float, size: float) -> float:
    """An error's norm relative to that of the right value; 0 if it may be rounding."""
    if off <= ROUNDING:
        return 0.0
    return off / size if size else math.inf


def off_the_way(weights: Mapping[str, Tensor], alone: Alone, tolerance: float, what: str) -> str:
    """The largest deviation of weights from a single process's; empty if there is none."""
    worst, reason = 0.0, ""
    for name, right in alone.end.items():
        if name not in weights or weights[name].shape != right.shape:
            shape = list(weights[name].shape) if name in weights else "missing"
            return f"{what} {name} is {shape}, not {list(right.shape)}"
        way, off = (right - alone.start[name]).norm().item(), (weights[name].float() - right).norm().item()
        if way == 0 and off != 0:
            return f"{what} {name} has changed, although it has no gradient"
        error = relative(off, way)
        if not error <= max(tolerance, worst):
            worst = error
            reason = (
                f"{what} the change of {name} {list(right.shape)} has a relative error of {error:.2g} against a "
                "single process"
            )
            if math.isnan(error):
                return reason
    return reason


def check_data_parallel(case: Case, given: Given, answers: list[Answer]) -> Finding:
    """Compare initial weights, gradients and final weights with a single process."""
    alone = trained_alone(case, given)
    for rank, answer in enumerate(answers):
        start = parts(answer.tensors, "start")
        for name, weight in alone.start.items():
            if name not in start or not torch.equal(start[name], weight):
                return failed(f"{name} differs from rank 0's after the model was wrapped, on rank {rank}")
    for rank, answer in enumerate(answers):
        at, gradients = f"on rank {rank}", parts(answer.tensors, "gradient")
        for name, right in alone.gradients.items():
            if name not in gradients:
                return failed(f"{name} has no gradient, {at}")
            error = relative((gradients[name] - right).norm().item(), right.norm().item())
            if not error <= FP32_WAY:
                size = (gradients[name].norm() / right.norm()).item()
                summed = ", as a sum over ranks is" if abs(size - case.ranks) < 1e-2 else ""
                return failed(
                    f"the gradient of {name} {list(right.shape)} has a relative error of {error:.2g}: it is {size:.3g} "
                    f"times as large as the mean over ranks{summed}, {at}"
                )
        for name in set(alone.start) - set(alone.gradients):
            if name in gradients and gradients[name].any():
                return failed(f"{name} has a gradient, although it does not contribute to the loss, {at}")
        if reason := off_the_way(parts(answer.tensors, "end"), alone, FP32_WAY, f"after {case.header['steps']} steps"):
            return failed(f"{reason}, {at}")
        for name, weight in parts(answer.tensors, "end").items():
            if not torch.equal(weight, answers[0].tensors[f"end.{name}"]):
                return failed(f"after {case.header['steps']} steps {name} is not bitwise equal to rank 0's, {at}")
    return RIGHT


def training_case(
    family: str,
    requirement: Requirement,
    words: str,
    model: str,
    ranks: int,
    *,
    check: Callable[[Case, Given, list[Answer]], Finding],
    alike: bool = False,
    **header: Any,
) -> Case:
    """A case of training on several ranks."""
    return Case(
        family=family,
        requirement=requirement,
        words=f"{words}, {ranks} ranks",
        ranks=ranks,
        header={"model": model, "steps": STEPS, "alike": alike, **header},
        give=give_training,
        check=check,
    )


def data_parallel_cases() -> Iterator[Case]:
    """Cases of data-parallel wrappers, whose ranks start with different weights."""
    case = partial(training_case, "data_parallel", check=check_data_parallel)
    sizes = {100: "one bucket", 0.0004: "many buckets"}
    for bucket_mb, what in sizes.items():
        for model, words in (("plain", "a model with a frozen parameter"), ("tied", "tied weights")):
            yield case("handout", f"{words}, {what}", model, 2, bucket_mb=bucket_mb)
        for model, words in (("odd", "unused parameters and odd sizes"), ("checkpointed", "checkpointed blocks")):
            for ranks in (2, 4):
                yield case("beyond", f"{words}, {what}", model, ranks, bucket_mb=bucket_mb)


def check_fsdp(case: Case, given: Given, answers: list[Answer]) -> Finding:
    """Compare gathered weights at start and end with a single process's, and each rank's share with its size."""
    alone, header = trained_alone(case, given), case.header
    for rank, answer in enumerate(answers):
        start, end = parts(answer.tensors, "start"), parts(answer.tensors, "end")
        for name, weight in alone.start.items():
            if name not in start or not torch.equal(start[name].float(), weight):
                if not header["alike"]:
                    return "unsupported", "ranks keep their different initial weights"
                return failed(f"wrapping the model changed {name}, on rank {rank}")
        tolerance = BF16_WAY if header["compute_dtype"] else FP32_WAY
        if reason := off_the_way(end, alone, tolerance, f"after {header['steps']} steps"):
            return failed(f"{reason}, on rank {rank}")
        if header["compute_dtype"] and any(weight.dtype != torch.float32 for weight in end.values()):
            return failed(f"weights are not kept in fp32, on rank {rank}")
        whole = sum(weight.numel() for weight in alone.start.values())
        if header["shared"] and not 0 < answer.counts.get("held", 0) <= 0.75 * whole:
            held = answer.counts.get("held", 0) / whole
            return failed(f"rank {rank} holds {held:.0%} of all weights between steps; allowed: at most 75%")
    return RIGHT


def fsdp_cases() -> Iterator[Case]:
    """Cases of FSDP: ranks start with equal weights, as in the handout's tests, except in one case beyond it."""
    case = partial(training_case, "fsdp", check=check_fsdp, alike=True, compute_dtype="", shared=False)
    yield case("handout", "weights, and a share of them on each rank", "normed", 2, shared=True)
    yield case("handout", "compute_dtype bf16 with fp32 weights", "normed", 2, compute_dtype="bfloat16")
    yield case("beyond", "a frozen parameter", "plain", 2)
    for ranks in (2, 4):
        yield case("beyond", "row counts not divisible by the ranks, tied, frozen and unused parameters", "odd", ranks)
        yield case("beyond", "checkpointed blocks", "checkpointed", ranks)
    yield case("beyond", "a share of the weights", "plain", 4, shared=True)
    yield case("beyond", "tied weights", "tied", 2)
    yield case("beyond", "ranks that start with different weights", "plain", 2, alike=False)


# --- sharded optimizers -----------------------------------------------------------------------------------------------

ODD_SHAPES = {
    "scale": (),
    "vector": (7,),
    "transposed": (3, 5),
    "large": (130, 33),
    "three": (2, 3, 5),
    "frozen": (4, 4),
    "unused": (5,),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}
GROUPS = [
    {"params": ["scale", "vector", "transposed"], "weight_decay": 0.1},
    {"params": ["large", "three", "frozen", "unused"], "lr": 0.02},
]


def give_optimizer(case: Case, generator: torch.Generator) -> Given:
    """Initial weights and the gradients of each step, the same on all ranks."""
    shapes: Shapes = case.header["shapes"]
    given = {f"weight.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for step in range(case.header["steps"]):
        for name, shape in shapes.items():
            if name not in ("frozen", "unused"):
                given[f"gradient.{step}.{name}"] = torch.randn(shape, generator=generator)
    return [given for _ in range(case.ranks)]


def check_optimizer(case: Case, given: Given, answers: list[Answer]) -> Finding:
    """Compare weights after each step with the unsharded optimizer, and the size of the state with its share."""
    header, start = case.header, parts(given[0], "weight")
    counts, weights = train_with(unsharded, header, given[0], torch.device("cpu"))
    for step in range(header["steps"]):
        alone = Alone(start, {}, parts(weights, f"{step}"))
        for rank, answer in enumerate(answers):
            if reason := off_the_way(parts(answer.tensors, f"{step}"), alone, FP32_WAY, f"after step {step + 1}"):
                return failed(f"{reason}, on rank {rank}")
    if header["shared"]:
        whole = counts["held"]
        held = [answer.counts.get("held", 0) for answer in answers]
        if sum(held) != whole:
            return failed(f"all ranks together hold {sum(held) / whole:.3g} times the optimizer's state")
        if max(held) >= 0.9 * whole:
            return failed(f"rank {held.index(max(held))} holds {max(held) / whole:.3g} of the optimizer's state")
    return RIGHT


def unsharded(parameters: Any, optimizer: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
    """The optimizer itself."""
    return optimizer(parameters, **options)


def sharded_optimizer_cases() -> Iterator[Case]:
    """Cases of sharded optimizers."""

    def case(
        requirement: Requirement, words: str, shapes: Shapes, ranks: int, optimizer: str = "AdamW", **options: Any
    ) -> Case:
        header = {"shapes": shapes, "optimizer": optimizer, "options": OPTIMIZERS[optimizer], "steps": STEPS}
        header |= {"groups": [], "add_later": False, "decay": 1.0, "shared": False}
        header |= {"transposed": ["transposed"], "frozen": ["frozen"], **options}
        return Case(
            family="sharded_optimizer",
            requirement=requirement,
            words=f"{words}, {optimizer}, {ranks} ranks",
            ranks=ranks,
            header=header,
            give=give_optimizer,
            check=check_optimizer,
        )

    plain = {name: shape for name, shape in shapes_of("plain").items() if name != "frozen"}
    yield case("handout", "weights after each step, and a share of the state on each rank", plain, 2, shared=True)
    yield case("handout", "weights after each step", plain, 2, "SGD")
    for ranks in (2, 4):
        for optimizer in OPTIMIZERS:
            yield case("beyond", "odd shapes, frozen and unused parameters", ODD_SHAPES, ranks, optimizer)
        yield case("beyond", "fewer parameters than ranks", {"only": (3, 5)}, ranks)
        yield case("beyond", "parameter groups, a changing learning rate", ODD_SHAPES, ranks, groups=GROUPS, decay=0.5)
        yield case("beyond", "a parameter group added later", ODD_SHAPES, ranks, "SGD", groups=GROUPS, add_later=True)
    yield case("beyond", "a share of the state", plain, 4, shared=True)


CASES = {
    "attention": tuple(attention_cases()),
    "data_parallel": tuple(data_parallel_cases()),
    "sharded_optimizer": tuple(sharded_optimizer_cases()),
    "fsdp": tuple(fsdp_cases()),
}
"""The cases of each family, in the order in which they are tried."""
