"""A training step of any module, run on PyTorch's meta device: its allocations and releases in order, and its work.

Nothing is computed, so a model of any size can be traced on any machine in seconds.
"""

import contextlib
import copy
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from cs336_systems.accounting.step_work import DIAGONAL, HEAD_TILE
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.fit.as_on_gpu import AsOnGpu

Precision = Literal["fp32", "autocast", "bf16", "sharded"]
"""autocast: bf16 over fp32 weights; bf16: bf16 weights too; sharded: all in bf16 but RMSNorm, as FSDP computes."""
HALF = ("bf16", "sharded")
"""Precisions whose weights are in bf16."""
Kind = Literal["allocate", "free", "gradient", "copy", "passing"]
"""gradient: a storage is now a parameter's full gradient; copy: it is a bf16 copy of a weight; passing: temporary bytes
of a kernel."""
FLASH, FLASH_BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
PASSING = (FLASH_BACKWARD, "_softmax_backward_data")
"""Operators whose GPU kernels allocate and free as many fp32 elements as their second argument has: the query, whose
gradient is summed in fp32; the probabilities, which are multiplied by their gradient."""
CUBLAS = ("mm", "addmm", "bmm", "baddbmm")
BACKWARD_OF_FLASH = 2.5
"""Ratio of the matmuls in attention's backward and forward pass."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a storage during a step."""

    kind: Kind
    storage: int
    bytes: int = 0
    """Bytes of an allocation; for a gradient, the index of its parameter."""


@dataclass(frozen=True)
class Trace:
    """A training step without its optimizer."""

    parameters: tuple[Tensor, ...]
    """Numbers of elements of the trained parameters, tied ones once."""
    constants: tuple[int, ...]
    """Bytes of all other storages that outlive the step: buffers, frozen weights, inputs."""
    units: tuple[int, ...]
    """For each parameter, the unit in which FSDP gathers it: a block, or a module outside the blocks."""
    events: list[Event] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)
    """Amounts by kind of `step_work.Work`: FLOPs of matmuls, bytes of passes, scores, kernels."""
    blocks: int = 0
    """Blocks that can be checkpointed."""
    matmuls: set[bool] = field(default_factory=set)
    """Whether the forward pass (False) and the backward pass (True) call cuBLAS."""
    convolutions: set[bool] = field(default_factory=set)
    """The same of convolutions, whose libraries choose by the GPU what memory they need while they run."""

    @property
    def numbers(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight, and of its gradient."""
        return max(self.parameters, key=Tensor.numel).element_size()

    def unit_numbers(self) -> list[int]:
        """Weights of each unit, in the order of the model."""
        numbers: Counter[int] = Counter()
        for parameter, unit in zip(self.parameters, self.units, strict=True):
            numbers[unit] += parameter.numel()
        return [numbers[unit] for unit in sorted(numbers)]


def on_meta(build: Callable[[], nn.Module], precision: Precision) -> nn.Module:
    """Build a module on the meta device, with weights as a precision has them; raises as `trace_step` does.

    A module with data is copied without it, and stays as it is.
    """
    with meta_errors("built"), torch.device("meta"):
        model = build if isinstance(build, nn.Module) else build()
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is of type {type(model).__name__}; allowed: a torch.nn.Module")
    if any(not x.is_meta for x in (*model.parameters(), *model.buffers())):
        with meta_errors("copied"):  # it may be the caller's, with weights to keep
            model = copy.deepcopy(model, {id(x): _without_data(x) for x in (*model.parameters(), *model.buffers())})
    model = model.to("meta").train()
    if precision in HALF:
        model = model.to(torch.bfloat16)
    for norm in model.modules() if precision == "sharded" else ():
        if isinstance(norm, nn.RMSNorm):
            norm.float()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no weights to train")
    return model


def _without_data(x: Tensor) -> Tensor:
    y = x.detach().to("meta")
    return nn.Parameter(y, x.requires_grad) if isinstance(x, nn.Parameter) else y


def trace_step(
    build: Callable[[], nn.Module],
    inputs: Sequence[Tensor],
    loss: Callable[[Any], Tensor],
    *,
    precision: Precision = "fp32",
    checkpointed: bool = False,
    loss_in_autocast: bool = True,
) -> Trace:
    """Run one forward and backward pass of a module on the meta device.

    Args:
        build: makes the module; called with the meta device as default.
        inputs: the module's arguments, where only shapes and dtypes matter.
        loss: maps the module's output to a scalar.
        precision: of weights and operators.
        checkpointed: whether each block (member of a ModuleList or Sequential of equals) keeps only its input.
        loss_in_autocast: whether autocast ends with the loss, as in PyTorch's examples, or with the model. It keeps its
            bf16 copies of weights until it ends, also in checkpointed blocks.

    Raises:
        ValueError: the module cannot be built or run without data, in one sentence.
    """
    model = on_meta(build, precision)
    arguments = [torch.empty_like(x, device="meta") for x in inputs]
    if precision in HALF:
        arguments = [x.bfloat16() if x.is_floating_point() else x for x in arguments]
    with meta_errors("run"):  # of weights without a shape
        trace = _empty_trace(model, arguments)
        recorder = Recorder(trace, [*model.parameters(), *model.buffers(), *arguments])
    kernels = AsOnGpu(autocast=precision == "autocast", on_copy=partial(recorder.mark, "copy"))
    with meta_errors("run"), kernels, torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about speed, on a device that computes nothing
        if checkpointed:
            for block in blocks_of(model):
                block.forward = _Checkpointed(block.forward, kernels)
        with recorder:
            output = model(*arguments)
            if not loss_in_autocast:
                kernels.forget_copies()
            value = loss(output)
            del output
            kernels.forget_copies()
            recorder.backward = True
            value.backward()
            del value
    return trace


@contextlib.contextmanager
def meta_errors(what: str) -> Iterator[None]:
    """Convert exceptions of the user's module into one sentence."""
    try:
        yield
    except (Exception, SystemExit) as error:
        text = "".join(filter(str.isprintable, (str(error).splitlines() or [""])[0]))
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise ValueError(f"the model cannot be {what} on the meta device: {reason[:300]}") from None


def next_token(logits: Tensor) -> Tensor:
    """Cross-entropy with targets of the logits' shape, [batch, tokens, vocabulary]."""
    if not (isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() > 1):
        shape = f" of shape {list(logits.shape)}" if isinstance(logits, Tensor) else ""
        raise TypeError(
            f"its output is a {type(logits).__name__}{shape}; allowed: logits, or in Python your own `loss`"
        )
    targets = torch.empty(logits.shape[:-1].numel(), dtype=torch.int64, device=logits.device)
    return functional.cross_entropy(logits.flatten(0, -2), targets)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one class, which a training loop would checkpoint and shard individually."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    equal = [blocks for blocks in lists if len(blocks) > 1 and len({type(block) for block in blocks}) == 1]
    return max(equal, key=len, default=[])


class Recorder(TorchDispatchMode):
    """Records the events and the work of all operators while it is active."""

    def __init__(self, trace: Trace, known: Sequence[Tensor]):
        """`known`: tensors that exist already."""
        super().__init__()
        self.trace, self.backward = trace, False
        self._living = {x.untyped_storage()._cdata: -1 for x in known}
        self._number = 0
        self._sum: tuple[int, int] | None = None
        for index, parameter in enumerate(trace.parameters):
            parameter.register_post_accumulate_grad_hook(lambda x, index=index: self.mark("gradient", x.grad, index))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and record it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._sum = None
        made = [self._count(x.untyped_storage()) for x in tree_iter(result) if isinstance(x, Tensor)]
        if any(made) or func._schema.is_mutable:
            self._work(func, args, kwargs, result)
        if self.backward and func is torch.ops.aten.add.Tensor and isinstance(args[1], Tensor):
            self._sum = self._living[args[0].untyped_storage()._cdata], result.untyped_storage()._cdata
        return result

    def mark(self, kind: Kind, tensor: Tensor, index: int = 0) -> None:
        """Record what a tensor's storage now is."""
        self.trace.events.append(Event(kind, self._living[tensor.untyped_storage()._cdata], index))

    def _count(self, storage: Any) -> bool:
        if storage._cdata in self._living:
            return False
        self._number += 1
        number = self._living[storage._cdata] = self._number
        self.trace.events.append(Event("allocate", number, storage.nbytes()))
        weakref.finalize(storage, self._free, storage._cdata).atexit = False
        return True

    def _free(self, name: int) -> None:
        number = self._living.pop(name)
        # Needed only for the sum: autograd adds in place, but not under a mode.
        if self._sum and self._sum[0] == number:
            self._living[self._sum[1]] = number
            self.trace.events.pop()
            self._sum = None
            return
        self.trace.events.append(Event("free", number))

    def _work(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        work, packet = self.trace.work, func._overloadpacket
        work["kernels"] += 1
        if packet.__name__ in PASSING:
            numbers = args[1].numel()
            self.trace.events.append(Event("passing", 0, FP32_BYTES * numbers))
        tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        first = next((x for x in tensors if x.is_floating_point()), None)
        if packet.__name__ in (FLASH, FLASH_BACKWARD):
            self._flash(packet.__name__, args, kwargs)
        elif packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            work["bf16_matmuls" if first is not None and first.dtype == torch.bfloat16 else "fp32_matmuls"] += flops
            if packet.__name__ in CUBLAS:
                self.trace.matmuls.add(self.backward)
            elif "convolution" in packet.__name__:
                self.trace.convolutions.add(self.backward)
        else:
            outputs = [x for x in tree_iter(result) if isinstance(x, Tensor)]
            work["eager_passes"] += sum(x.numel() * x.element_size() for x in (*tensors, *outputs))

    def _flash(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        backward = name == FLASH_BACKWARD
        query, key = args[1:3] if backward else args[:2]
        causal = args[11] if backward else (args[4] if len(args) > 4 else kwargs.get("is_causal", False))
        width = max(HEAD_TILE, 1 << (query.shape[-1] - 1).bit_length())
        keys = key.shape[-2] / 2 + DIAGONAL if causal else key.shape[-2]
        pairs = prod(query.shape[:-1]) * keys
        self.trace.work["flash_matmuls"] += (BACKWARD_OF_FLASH if backward else 1) * 4 * pairs * width
        self.trace.work["flash_exponentials"] += (2 if backward else 1) * pairs


def _empty_trace(model: nn.Module, arguments: Sequence[Tensor]) -> Trace:
    blocks = blocks_of(model)
    unit_of: dict[Tensor, int] = {}
    units: dict[nn.Module, int] = {}
    inside = {module: block for block in blocks for module in block.modules()}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            unit_of.setdefault(parameter, units.setdefault(inside.get(module, module), len(units)))
    trained = [parameter for parameter in unit_of if parameter.requires_grad]
    frozen = [parameter for parameter in unit_of if not parameter.requires_grad]
    others = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in (*frozen, *model.buffers(), *arguments)}
    return Trace(
        parameters=tuple(trained),
        constants=tuple(others.values()),
        units=tuple(unit_of[parameter] for parameter in trained),
        blocks=len(blocks),
    )


class _Checkpointed:
    """A forward pass that keeps only its inputs."""

    def __init__(self, forward: Callable[..., Any], kernels: AsOnGpu):
        self.forward, self.kernels = forward, kernels
        self.runs = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs = 0
        return checkpoint(self._run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        if self.runs == 1:
            return self.forward(*args, **kwargs)
        with self.kernels:  # off during the backward pass
            try:
                return self.forward(*args, **kwargs)
            finally:
                self.kernels.forget_copies()
