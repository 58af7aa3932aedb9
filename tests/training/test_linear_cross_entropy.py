"""Linear cross-entropy against float64, in PyTorch and by its kernels through Triton's interpreter."""

import sys

import pytest
import torch
from torch.nn import functional as F

from cs336_systems.training.gradient_sums import GradientSums
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy

DTYPES = [torch.bfloat16, torch.float32]


def make_inputs(tokens, d, vocabulary, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, d, generator=generator).to(device, dtype)
    weight = torch.randn(vocabulary, d, generator=generator).to(device, dtype) / d**0.5
    targets = torch.randint(vocabulary, (tokens,), generator=generator).to(device)
    targets[::5] = -100
    targets = targets.repeat_interleave(2)[::2]  # not contiguous
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden, weight, targets):
    """Loss and gradients with all logits, in the dtype of the inputs; the loss at least in fp32."""
    logits = F.linear(hidden, weight)
    loss = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)
    return loss.detach(), *torch.autograd.grad(3 * loss, (hidden, weight))


def check(tokens, d, vocabulary, dtype, chunk, device="cpu"):
    """An error at most twice PyTorch's with all logits in the same precision."""
    hidden, weight, targets = make_inputs(tokens, d, vocabulary, dtype, device)
    exact = plain(hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_(), targets)
    theirs = plain(hidden, weight, targets)
    loss = linear_cross_entropy(hidden, weight, targets, chunk)
    ours = loss.detach(), *torch.autograd.grad(3 * loss, (hidden, weight))
    assert loss.dtype is torch.float32
    for name, x, y, reference in zip(("loss", "dhidden", "dweight"), ours, theirs, exact, strict=True):
        rounding = torch.finfo(dtype if x.dim() else torch.float32).eps * reference.abs().max()
        allowed = 2 * (y - reference).abs().max() + 2 * rounding
        assert (x - reference).abs().max() <= allowed, f"{name} with {vocabulary} words, chunks of {chunk} tokens"


@pytest.mark.numeric
@pytest.mark.parametrize("chunk", [None, 7, 1])
@pytest.mark.parametrize("vocabulary", [3, 97, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients(dtype, vocabulary, chunk):
    check(23, 24, vocabulary, dtype, chunk)


@pytest.mark.numeric
@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [None, 100])
@pytest.mark.parametrize("vocabulary", [97, 10_000, 32_000, 50_257, 151_936])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients_on_a_gpu(dtype, vocabulary, chunk):
    check(259, 256, vocabulary, dtype, chunk, "cuda")


def test_only_what_is_needed_is_computed(device, monkeypatch):
    matmuls = []

    def counted(function):
        return lambda *args, **options: (matmuls.append(len(args[0])), function(*args, **options))[1]

    monkeypatch.setattr(torch, "mm", counted(torch.mm))
    monkeypatch.setattr(torch, "addmm", counted(torch.addmm))
    hidden, weight, targets = make_inputs(16, 16, 32, torch.float32, device)
    expected, *_ = plain(hidden, weight, targets)
    for h, w, count in ((hidden, weight, 3), (hidden.detach(), weight, 2), (hidden, weight.detach(), 2)):
        matmuls.clear()
        linear_cross_entropy(h, w, targets).backward()
        assert len(matmuls) == count
    matmuls.clear()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, targets, chunk=4)
        assert matmuls == [4] * 4
        torch.testing.assert_close(loss, expected)
        matmuls.clear()
        monkeypatch.setattr(sys.modules[linear_cross_entropy.__module__], "LOGITS_BYTES", 64 * 4 * 10)
        linear_cross_entropy(*make_inputs(23, 8, 50, torch.float32, device))
    assert matmuls == [8, 8, 7], "chunks of equal sizes, of at most 10 tokens"


def test_autocast_shapes_and_no_tokens(device):
    hidden, weight, targets = make_inputs(24, 16, 32, torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        loss = linear_cross_entropy(hidden.view(2, 12, 16), weight, targets.view(2, 12))
        expected = F.cross_entropy(F.linear(hidden, weight).float(), targets)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    loss.backward()
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    for kept in (24, 0):
        loss = linear_cross_entropy(hidden[:kept], weight, torch.full_like(targets, -100)[:kept])
        gradients = torch.autograd.grad(loss, (hidden, weight))
        assert loss.isnan()
        assert all((x == 0).all() for x in gradients)


def test_targets_of_any_integer_dtype(device):
    hidden, weight, _ = make_inputs(6, 8, 200, torch.float32, device)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint64):
        ignored = 9 if dtype in (torch.uint8, torch.uint16, torch.uint64) else -100
        targets = torch.tensor([0, 9, 120, 3, ignored, 7], device=device).to(dtype)
        loss = linear_cross_entropy(hidden, weight, targets, ignore_index=ignored)
        want = F.cross_entropy(F.linear(hidden, weight), targets.long(), ignore_index=ignored)
        torch.testing.assert_close(loss, want)


def test_mistakes_are_refused():
    hidden, weight, targets = make_inputs(6, 8, 10, torch.float32)
    for arguments, match in (
        ((hidden, weight.T, targets), r"shapes \[6, 8\] and \[8, 10\]"),
        ((hidden, weight, targets[:5]), r"shape \[5\]; allowed: hidden's, \[6\]"),
        ((hidden, weight.bfloat16(), targets), "torch.float32 and torch.bfloat16"),
        ((hidden.half(), weight.half(), targets), "torch.float16"),
        ((hidden, weight, targets.float()), "allowed: integers"),
        ((hidden, weight, targets > 3), "targets are torch.bool; allowed: integers"),
        ((hidden, weight, targets.to("meta")), "cpu, cpu and meta; allowed: one device"),
        ((hidden, weight, targets, 0), "chunk is 0"),
        ((hidden, weight, targets, 2.5), "chunk is 2.5"),
        ((hidden, weight[:0], targets), "weight has no rows"),
        ((hidden, weight, targets, None, -100, "none"), "reduction is 'none'; allowed: 'mean' and 'sum'"),
    ):
        with pytest.raises(ValueError, match=match):
            linear_cross_entropy(*arguments)
    with pytest.raises(IndexError, match="Target 10 is out of bounds"):
        linear_cross_entropy(hidden, weight, torch.full_like(targets, 10))
    loss = linear_cross_entropy(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward twice"):
        loss.backward()


@pytest.mark.numeric
def test_sums_of_parts_are_the_mean_of_all(device):
    """Also added up in fp32, where the weight is bf16."""
    hidden, weight, targets = make_inputs(24, 16, 40, torch.bfloat16, device)
    targets[6:11] = targets[12:18] = -100
    weight = torch.nn.Parameter(weight.detach())
    linear_cross_entropy(hidden, weight, targets).backward()
    expected, weight.grad = weight.grad.float(), None
    counted = (targets != -100).sum()
    with GradientSums([weight]) as sums:
        for x, y in zip(hidden.detach().chunk(4), targets.chunk(4), strict=True):
            (linear_cross_entropy(x, weight, y, chunk=4, reduction="sum") / counted).backward()
    assert (sums.gradients[weight] - expected).norm() < 2**-7 * expected.norm()


def test_a_compiled_model_may_call_it():
    hidden, weight, targets = make_inputs(6, 8, 10, torch.float32)
    compiled = torch.compile(lambda h: linear_cross_entropy(h * 2, weight, targets) * 2, backend="eager")
    torch.testing.assert_close(compiled(hidden), linear_cross_entropy(hidden * 2, weight, targets) * 2)


def interpreted() -> None:
    """Run the kernels on the CPU: rows of one block and of several, ignored and invalid targets."""
    from cs336_systems.training import triton_cross_entropy

    triton_cross_entropy.MAX_BLOCK = 64
    for dtype in DTYPES:
        for vocabulary in (5, 64, 130):
            check(11, 24, vocabulary, dtype, 6)
    hidden, weight, targets = make_inputs(6, 8, 10, torch.float32)
    targets[3] = 10
    loss = linear_cross_entropy(hidden, weight, targets.int())
    (d_hidden,) = torch.autograd.grad(loss, hidden)
    assert loss.isnan()
    assert d_hidden.isnan().any(1).tolist() == [False, False, False, True, False, False]
    gradient = torch.tensor([1.0, float("nan"), 3.0])
    triton_cross_entropy.scale_in_place(gradient, torch.tensor(0.5))
    assert gradient[::2].tolist() == [0.5, 1.5]
