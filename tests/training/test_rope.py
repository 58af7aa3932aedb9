"""Rotary embeddings of q and k in one pass, against float64: plain, interpreted (test_interpreted.py) and on a GPU."""

import pytest
import torch

from cs336_systems.attention.launcher import ensure_described
from cs336_systems.attention.operators import empty_output
from cs336_systems.model import RotaryEmbedding
from cs336_systems.training.rope import rotate_qkv
from tests.training.interpreted import INTERPRETED, assert_close, need_gpu_memory, rounding, uses_kernel

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = [  # batch, sequence, heads, heads of keys and values, d_head
    (1, 1, 1, 1, 2),
    (2, 7, 3, 3, 10),
    (3, 5, 2, 2, 80),
    (1, 9, 6, 3, 128),
    (2, 33, 5, 1, 64),
]


def make_inputs(case, dtype, device):
    batch, sequence, heads, kv_heads, d_head = case
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(batch, sequence, (heads + 2 * kv_heads) * d_head, generator=generator)
    gradients = [
        torch.randn(batch, sequence, n, d_head, generator=generator).to(device, dtype).transpose(1, 2)
        for n in (heads, kv_heads, kv_heads)
    ]
    rope = RotaryEmbedding(sequence + 4, d_head, 10_000.0).to(device)
    return qkv.to(device, dtype).requires_grad_(), gradients, rope


def rotated(qkv, turns, heads, interleaved=True):
    """q, k and v, by products with complex numbers of length one, [sequence, d_head / 2]."""
    q, k, v = qkv.unflatten(-1, (sum(heads), -1)).transpose(1, 2).split(heads, dim=1)

    def rotate(x):
        x = x if interleaved else x.unflatten(-1, (2, -1)).mT.flatten(-2)
        x = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns)
        return x.flatten(-2) if interleaved else x.mT.flatten(-2)

    return rotate(q), rotate(k), v


def reference(qkv, gradients, rope, interleaved=True):
    """The same in float64."""
    leaf = qkv.detach().double().requires_grad_()
    turns = torch.complex(rope.cos.double(), rope.sin.double())[: qkv.shape[1]]
    results = rotated(leaf, turns, [x.shape[1] for x in gradients], interleaved)
    return results, torch.autograd.grad(results, leaf, [x.double() for x in gradients])[0]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("case", CASES)
def test_matches_float64(case, dtype, interleaved, device):
    qkv, gradients, rope = make_inputs(case, dtype, device)
    results = rotate_qkv(qkv.clone(), rope.cos, rope.sin, case[2], case[3], interleaved=interleaved)
    assert uses_kernel(results[0], "RotateQKV")
    torch.autograd.backward(results, gradients)
    want, d_qkv = reference(qkv, gradients, rope, interleaved)
    for got, exact in zip(results, want, strict=True):
        assert got.dtype == dtype
        assert_close(got, exact, rounding(dtype, device))
    assert_close(qkv.grad, d_qkv, rounding(dtype, device))


def test_attention_accepts_the_views_and_writes_rows_of_d_model(device):
    if not (INTERPRETED or device == "cuda"):
        pytest.skip("the plain formula makes no views")
    qkv, _, rope = make_inputs((2, 16, 3, 3, 80), BF16, device)
    views = [x.detach() for x in rotate_qkv(qkv.clone(), rope.cos, rope.sin, 3)]
    assert all(ensure_described(x) is x for x in views), "attention would copy them"
    assert empty_output(views[0]).transpose(1, 2).is_contiguous()


def test_old_values_that_a_backward_pass_needs_are_missed(device):
    qkv, _, rope = make_inputs((2, 7, 3, 3, 16), FP32, device)
    product = qkv * 1
    squared = product.square().sum()  # keeps product
    results = rotate_qkv(product, rope.cos, rope.sin, 3)
    if INTERPRETED or device == "cuda":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.backward()
        assert results[0].untyped_storage().data_ptr() == product.untyped_storage().data_ptr()
    else:
        squared.backward()


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_whose_heads_are_further_apart_than_32_bits_can_count(device, interleaved):
    if device == "cuda":
        need_gpu_memory(5)
    qkv, (dq, dk, dv), rope = make_inputs((1, 4, 3, 3, 16), BF16, device)
    apart = 2**30  # as of a million tokens and more; of the memory between them nothing is touched on a CPU
    far = torch.empty(2 * apart + dq.shape[2] * 16, dtype=BF16, device=device).as_strided(dq.shape, (1, apart, 16, 1))
    far.copy_(dq)
    d_qkvs = []
    for gradient in (dq, far):
        qkv.grad = None
        results = rotate_qkv(qkv * 1, rope.cos, rope.sin, 3, interleaved=interleaved)
        torch.autograd.backward(results, (gradient, dk, dv))
        d_qkvs.append(qkv.grad)
    assert torch.equal(*d_qkvs)


def test_shapes_that_do_not_match_are_refused():
    table = torch.ones(4, 2)
    with pytest.raises(ValueError, match=r"6 heads of even width\], got shape \[1, 4, 18\]"):
        rotate_qkv(torch.ones(1, 4, 18), table, table, 2)
    with pytest.raises(ValueError, match=r"sin must be \[context >= 4, d_head / 2 = 2\], got shape \[3, 2\]"):
        rotate_qkv(torch.ones(1, 4, 24), table, table[:3], 2)
    with pytest.raises(ValueError, match=r"^num_heads is 0, and num_kv_heads 0; allowed: whole numbers from 1$"):
        rotate_qkv(torch.ones(1, 4, 24), table, table, 0)
    with pytest.raises(ValueError, match=r"^qkv is of dtype torch\.int32; allowed: floating-point dtypes$"):
        rotate_qkv(torch.ones(1, 4, 24, dtype=torch.int32), table, table, 2)
