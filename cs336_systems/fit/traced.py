"""Training configurations of any module, predicted from traces of its step on PyTorch's meta device."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from cs336_systems.accounting.step_work import SPLIT_UPDATE_BYTES, WHOLE_UPDATE_BYTES, Rates, Work, reduced_work
from cs336_systems.accounting.units import BYTES
from cs336_systems.experiments.base import make_cell
from cs336_systems.fit.answer import Answer
from cs336_systems.fit.gpus import memory_of, rates_of
from cs336_systems.fit.parameters import Question
from cs336_systems.fit.recorded import MEMORY_WITHIN, recorded
from cs336_systems.fit.replay import Sharing, peak_of
from cs336_systems.fit.strategies import SCHEMES
from cs336_systems.fit.tracing import Precision, Trace, next_token, trace_step
from cs336_systems.fit.verdict import Prediction, outcome_of, outside
from cs336_systems.measure.gpus import Gpu, listed

Loss = Callable[[Any], Tensor]
Traced = Callable[..., Trace]


def fit(
    build: Callable[[], nn.Module],
    inputs: tuple[int, ...] | Sequence[Tensor],
    *,
    loss: Loss | None = None,
    title: str = "the model",
    gpu: str = recorded().gpu,
    gpus: int = 1,
    precision: Literal["fp32", "bf16"] = "bf16",
    price: float | None = None,
) -> Answer:
    """Predict which training configurations of a module fit into a GPU's memory, and how long a step takes.

    Args:
        build: makes the module; it is called inside `torch.device("meta")`, so that weights take no memory.
        inputs: the batch of one GPU: a shape of token ids, such as (4, 2048), or tensors on any device, where only
            shapes and dtypes matter. The first tensor's leading dimension is the number of sequences.
        loss: maps the module's output to a scalar; by default the next-token cross-entropy for token ids, and the mean
            square otherwise.
        title: the module's name in the answer.
        gpu: the GPU model, as nvidia-smi -L prints it or its short name.
        gpus: number of GPUs.
        precision: fp32, or bf16: autocast over fp32 weights, and bf16 weights with fp32 masters.
        price: the price of a GPU-hour; adds the price of a million tokens.

    Raises:
        ValueError: the module cannot be traced, or an argument's value is not allowed.
    """
    make_cell(cast(Any, Question), {"gpu": gpu, "gpus": gpus, "precision": precision, "price": price})
    ids = all(isinstance(size, int) for size in inputs)
    if not inputs or not all(size > 0 if ids else isinstance(size, Tensor) for size in inputs):
        raise ValueError(f"inputs is {str(inputs)[:80]}; allowed: a shape of token ids, such as (4, 2048), or tensors")
    shape: Any = inputs if ids else inputs[0].shape  # type: ignore[union-attr]
    batch: Any = [torch.empty(shape, dtype=torch.int64, device="meta")] if ids else inputs
    traced = cache(partial(trace_step, build, batch, loss or (next_token if ids else mean_square)))
    model, unit = listed(gpu), "tokens" if ids else "inputs"
    return Answer(
        title=title,
        gpu=model.name,
        gpus=gpus,
        capacity=memory_of(model),
        batch=f"{' x '.join(map(str, shape))} {unit}",
        tokens=torch.Size(shape).numel() if ids else shape[0],
        unit=unit,
        ways=tuple(predict(traced, model, gpus, precision)),
        price=price,
        elsewhere=lambda count: tuple(predict(traced, model, count, precision)),
    )


def mean_square(output: Any) -> Tensor:
    """The mean square of the first floating-point tensor in an output."""
    first = next((x for x in tree_iter(output) if isinstance(x, Tensor) and x.is_floating_point()), None)
    if first is None:
        raise TypeError("its output has no floating-point tensor")
    return first.float().square().mean()


def predict(traced: Traced, gpu: Gpu, gpus: int, precision: Literal["fp32", "bf16"]) -> Iterator[Prediction]:
    """Predict each configuration, in the order in which one would try them; `traced` traces the step in a precision."""
    alone: dict[Precision, str] = {"autocast": "autocast", "bf16": "bf16 weights"}
    if precision == "fp32":
        alone = {"fp32": "fp32"}
    if gpus == 1:
        for compute, name in alone.items():
            yield from _both(traced, gpu, compute, Sharing(), name)
        return
    for scheme, name in SCHEMES.items():
        mixed = scheme == "FSDP" and precision == "bf16"
        sharing = Sharing(scheme=scheme, ranks=gpus)
        yield from _both(traced, gpu, "sharded" if mixed else next(iter(alone)), sharing, name)


def _both(traced: Traced, gpu: Gpu, precision: Precision, sharing: Sharing, name: str) -> Iterator[Prediction]:
    """A configuration without and, if the module has blocks, with checkpointing."""
    plain = traced(precision=precision, checkpointed=False)
    yield prediction(plain, gpu, sharing, name)
    if plain.blocks:
        yield prediction(traced(precision=precision, checkpointed=True), gpu, sharing, f"{name}, checkpointed")


def prediction(trace: Trace, gpu: Gpu, sharing: Sharing, way: str) -> Prediction:
    """The memory and the time of a traced step."""
    memory, rest = peak_of(trace, sharing), outside(sharing.ranks)
    at_least = bool(trace.convolutions)
    fits = outcome_of([memory.total], MEMORY_WITHIN, rest, memory_of(gpu))
    return Prediction(
        way=way,
        kind="traced",
        outcome="tight" if at_least and fits == "fits" else fits,
        memory=memory,
        outside=rest,
        memory_error=None,
        seconds=work_of(trace, sharing, rates_of(gpu)).seconds(recorded().weights),
        time_error=None,
        host_seconds=trace.work["kernels"] * recorded().launch_seconds,
        at_least=at_least,
    )


def work_of(trace: Trace, sharing: Sharing, rates: Rates) -> Work:
    """All work of a traced step on one rank."""
    per_second = {
        "bf16_matmuls": rates.bf16,
        "fp32_matmuls": rates.fp32,
        "flash_matmuls": rates.bf16,
        "flash_exponentials": rates.bf16,
        "eager_passes": rates.bandwidth,
        "kernels": 1.0,
    }
    seconds = {kind: amount / per_second[kind] for kind, amount in trace.work.items()}
    numbers = trace.numbers / sharing.shares("state") / rates.bandwidth
    if trace.weight_bytes == BYTES["bf16"] and sharing.scheme != "FSDP":
        update = Work(split_update=SPLIT_UPDATE_BYTES * numbers)
    else:
        update = Work(update=WHOLE_UPDATE_BYTES * numbers)
    return Work(**seconds) + update + communication(trace, sharing, rates)


def communication(trace: Trace, sharing: Sharing, rates: Rates) -> Work:
    """Ring collectives of a traced step; FSDP gathers the weights in both passes."""
    if sharing.ranks == 1:
        return Work()
    sent = (sharing.ranks - 1) / sharing.ranks * trace.numbers * trace.weight_bytes / rates.link
    if sharing.scheme == "FSDP":
        return Work(gathered=3 * sent)
    return reduced_work(sharing.scheme, 2 * sent)
