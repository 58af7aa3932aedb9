"""AdamW for many tensors in one launch, at the speed of a copy.

A table on the device holds each tensor's addresses, so that one launch updates all of them and a CUDA graph contains
nothing that the host would have to renew. The gradients' addresses change from step to step. A small kernel writes them
into the table, counts the steps, and computes the step-dependent coefficients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 32  # tensors per launch of the small kernel
ALIGNMENT = 16  # bytes: one vector load
MISSING = tl.constexpr(1 << 62)  # the address of no gradient; like all addresses, more than 32 bits wide

COLUMNS = tl.constexpr(9)
WEIGHT = tl.constexpr(0)
REMAINDER = tl.constexpr(1)
EXP_AVG = tl.constexpr(2)
EXP_AVG_SQ = tl.constexpr(3)
STEP = tl.constexpr(4)
NUMEL = tl.constexpr(5)
FIRST_CHUNK = tl.constexpr(6)
GROUP = tl.constexpr(7)
ALIGNED = tl.constexpr(8)

COEFFICIENTS = tl.constexpr(8)  # per tensor, the last is unused


class Tuning(NamedTuple):
    """Launch parameters of the update."""

    block: int = 1024
    num_warps: int = 4
    load: str = "evict_first"
    """Eviction policy of the loads: nothing is read twice."""
    store: str = "evict_first"


TUNING = Tuning()


@triton.jit
def _advance_kernel(
    table,  # [tensors, COLUMNS] int64
    hyperparameters,  # [groups, 5] fp64
    gradients,  # [tensors] int64, out: addresses of gradients
    coefficients,  # [tensors, COEFFICIENTS] fp32, out
    first,  # tensor of the first lane
    count,  # lanes in use
    addresses,  # tuple of LANES integers
    LANES: tl.constexpr,
):
    """Store the addresses of gradients, count the step of each tensor that has one, and compute its coefficients."""
    lane = tl.arange(0, LANES)
    address = tl.full([LANES], MISSING, tl.int64)
    for i in tl.static_range(LANES):
        address = tl.where(lane == i, addresses[i], address)
    tensor = first + lane
    tl.store(gradients + tensor, address, mask=lane < count)
    present = (lane < count) & (address != MISSING)
    row = table + tensor * COLUMNS
    step_address = tl.load(row + STEP, mask=present, other=0).to(tl.pointer_type(tl.float32))
    step = tl.load(step_address, mask=present, other=0.0) + 1
    tl.store(step_address, step, mask=present)
    group = hyperparameters + tl.load(row + GROUP, mask=present, other=0) * 5
    lr = tl.load(group)
    beta1 = tl.load(group + 1)
    beta2 = tl.load(group + 2)
    # fp64: 1 - beta2 ** step loses four digits at the first steps.
    bias1 = 1 - tl.exp2(step.to(tl.float64) * tl.log2(beta1))
    bias2 = 1 - tl.exp2(step.to(tl.float64) * tl.log2(beta2))
    out = coefficients + tensor * COEFFICIENTS
    tl.store(out, (1 - lr * tl.load(group + 4)).to(tl.float32), mask=present)
    tl.store(out + 1, (1 - beta1).to(tl.float32), mask=present)
    tl.store(out + 2, beta2.to(tl.float32), mask=present)
    tl.store(out + 3, (1 - beta2).to(tl.float32), mask=present)
    tl.store(out + 4, (lr / bias1).to(tl.float32), mask=present)
    tl.store(out + 5, (1 / tl.sqrt(bias2)).to(tl.float32), mask=present)
    tl.store(out + 6, tl.load(group + 3).to(tl.float32), mask=present)


@triton.jit
def _update_kernel(
    table,  # [tensors, COLUMNS] int64
    chunk_tensor,  # [chunks] int32: the tensor that a chunk of BLOCK elements belongs to
    gradients,  # [tensors] int64
    coefficients,  # [tensors, COEFFICIENTS] fp32
    scale,  # pointer, one fp32 number: factor of the gradients
    first_chunk,  # of this launch
    SPLIT: tl.constexpr,  # bf16 weights with an int16 remainder, else fp32
    WIDE: tl.constexpr,  # fp32 gradients, else bf16
    BLOCK: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """Update one chunk of one tensor."""
    chunk = first_chunk + tl.program_id(0)
    tensor = tl.load(chunk_tensor + chunk)
    # Load the whole row at once, before a branch waits for part of it.
    row = table + tensor * COLUMNS
    gradient = tl.load(gradients + tensor)
    weight = tl.load(row + WEIGHT)
    remainder = tl.load(row + REMAINDER)
    exp_avg = tl.load(row + EXP_AVG)
    exp_avg_sq = tl.load(row + EXP_AVG_SQ)
    numel = tl.load(row + NUMEL)
    start = (chunk - tl.load(row + FIRST_CHUNK)) * BLOCK
    aligned = tl.load(row + ALIGNED)
    terms = coefficients + tensor * COEFFICIENTS
    if gradient != MISSING:
        left = numel - start
        addresses = (gradient, weight, remainder, exp_avg, exp_avg_sq)
        if (left >= BLOCK) & (aligned != 0) & (gradient % 16 == 0):
            _update_chunk(addresses, start, left, terms, scale, SPLIT, WIDE, BLOCK, LOAD, STORE, True)
        else:
            _update_chunk(addresses, start, left, terms, scale, SPLIT, WIDE, BLOCK, LOAD, STORE, False)


@triton.jit
def _update_chunk(
    addresses,  # of gradient, weight, remainder, exp_avg and exp_avg_sq
    start,  # first element
    left,  # elements from there to the tensor's end
    terms,  # pointer to the tensor's coefficients
    scale,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    VECTORS: tl.constexpr,  # whether the chunk is whole, and every address a multiple of 16 bytes
):
    """Read weights, gradients and moments, and write weights and moments."""
    lane = tl.arange(0, BLOCK)
    if VECTORS:
        # Four elements per thread and access, so that 2-byte and 4-byte tensors share one layout.
        lane = tl.max_contiguous(lane, 4)
        mask = None
    else:
        mask = lane < left
    source = _pointers(addresses[0], start, lane, tl.float32 if WIDE else tl.bfloat16, VECTORS)
    weight = _pointers(addresses[1], start, lane, tl.int16 if SPLIT else tl.float32, VECTORS)
    exp_avg = _pointers(addresses[3], start, lane, tl.float32, VECTORS)
    exp_avg_sq = _pointers(addresses[4], start, lane, tl.float32, VECTORS)
    g = tl.load(source, mask=mask, eviction_policy=LOAD).to(tl.float32)
    m = tl.load(exp_avg, mask=mask, eviction_policy=LOAD)
    v = tl.load(exp_avg_sq, mask=mask, eviction_policy=LOAD)
    if SPLIT:
        remainder = _pointers(addresses[2], start, lane, tl.int16, VECTORS)
        high = tl.load(weight, mask=mask, eviction_policy=LOAD).to(tl.int32)
        low = tl.load(remainder, mask=mask, eviction_policy=LOAD).to(tl.int32)
        w = ((high << 16) + low).to(tl.float32, bitcast=True)
    else:
        w = tl.load(weight, mask=mask, eviction_policy=LOAD)
    g *= tl.load(scale)
    m += (g - m) * tl.load(terms + 1)
    v = v * tl.load(terms + 2) + g * g * tl.load(terms + 3)
    denominator = tl.sqrt(v) * tl.load(terms + 5) + tl.load(terms + 6)
    w = w * tl.load(terms) - tl.load(terms + 4) * (m / denominator)
    tl.store(exp_avg, m, mask=mask, eviction_policy=STORE)
    tl.store(exp_avg_sq, v, mask=mask, eviction_policy=STORE)
    if SPLIT:
        bits = w.to(tl.int32, bitcast=True)
        bits = tl.where(w == w, bits, 0x7FC00000)  # rounding would wrap around for the hardware's NaN, all ones
        high = (bits + 0x8000) >> 16
        tl.store(weight, high.to(tl.int16), mask=mask, eviction_policy=STORE)
        tl.store(remainder, (bits - (high << 16)).to(tl.int16), mask=mask, eviction_policy=STORE)
    else:
        tl.store(weight, w, mask=mask, eviction_policy=STORE)


@triton.jit
def _pointers(address, start, lane, DTYPE: tl.constexpr, VECTORS: tl.constexpr):
    """Pointers to a chunk's elements."""
    base = address.to(tl.pointer_type(DTYPE)) + start
    if VECTORS:
        base = tl.multiple_of(base, 16)
    return base + lane


class Row(NamedTuple):
    """Tensors of one parameter: its weight, its state, and the number of its group."""

    weight: Tensor
    remainder: Tensor | None
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    group: int


class UpdateTable:
    """The parameters of one dtype on one device, as the kernel reads them."""

    def __init__(self, rows: Sequence[Row], hyperparameters: Tensor):
        """Write the table; this copies from the host, so it comes before a capture.

        Weights are bf16 with an int16 remainder, or fp32 without; moments fp32, steps fp32 scalars. Hyperparameters,
        [groups, 5] fp64 on the device, are lr, beta1, beta2, eps and weight decay.
        """
        self.tuning = TUNING
        self.hyperparameters = hyperparameters
        self.split = rows[0].remainder is not None
        device = rows[0].weight.device
        chunks = [triton.cdiv(row.weight.numel(), self.tuning.block) for row in rows]
        self.first_chunks = [0]
        for count in chunks:
            self.first_chunks.append(self.first_chunks[-1] + count)
        entries = []
        for row, first in zip(rows, self.first_chunks, strict=False):
            tensors = (row.weight, row.remainder, row.exp_avg, row.exp_avg_sq)
            addresses = [0 if x is None else x.data_ptr() for x in tensors]
            aligned = all(address % ALIGNMENT == 0 for address in addresses)
            entries.append([*addresses, row.step.data_ptr(), row.weight.numel(), first, row.group, int(aligned)])
        self.table = torch.tensor(entries, dtype=torch.int64).to(device)
        owners = torch.arange(len(rows), dtype=torch.int32)
        self.chunk_tensor = owners.repeat_interleave(torch.tensor(chunks)).to(device)
        self.gradients = torch.empty(len(rows), dtype=torch.int64, device=device)
        self.coefficients = torch.empty(len(rows), COEFFICIENTS.value, dtype=torch.float32, device=device)

    def update(self, gradients: Sequence[Tensor | None], scale: Tensor, first: int = 0) -> None:
        """Update consecutive tensors, from number `first` on, on the current stream of their device, the current one.

        Gradients have their tensors' memory layout, all in their dtype or all in fp32; None skips a tensor. Their
        factor `scale` is one fp32 number on the device.
        """
        wide = not self.split or any(x is not None and x.dtype is torch.float32 for x in gradients)
        addresses = [MISSING.value if x is None else x.data_ptr() for x in gradients]
        for start in range(0, len(addresses), LANES):
            part = addresses[start : start + LANES]
            padded = (*part, *[MISSING.value] * (LANES - len(part)))
            _advance_kernel[(1,)](
                self.table,
                self.hyperparameters,
                self.gradients,
                self.coefficients,
                first + start,
                len(part),
                padded,
                LANES,
                num_warps=1,
            )
        first_chunk = self.first_chunks[first]
        chunks = self.first_chunks[first + len(addresses)] - first_chunk
        _update_kernel[(chunks,)](
            self.table,
            self.chunk_tensor,
            self.gradients,
            self.coefficients,
            scale,
            first_chunk,
            self.split,
            wide,
            self.tuning.block,
            self.tuning.load,
            self.tuning.store,
            num_warps=self.tuning.num_warps,
        )
