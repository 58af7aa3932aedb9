"""Layouts, frozen arguments, second derivatives and torch.func: as PyTorch's, or an error. Plain and interpreted."""

import pytest
import torch
from torch.nn import functional as F

from cs336_systems.training.fp8 import fp8_linear
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy
from cs336_systems.training.packed_linear import packed_linear
from cs336_systems.training.rms_norm import add_rms_norm
from cs336_systems.training.rope import rotate_qkv
from cs336_systems.training.swiglu import swiglu, swiglu_linear
from tests.training.interpreted import need_gpu_memory
from tests.training.test_rope import rotated

TARGETS = torch.tensor([4, 0, -100])
ANGLES = torch.rand(3, 2, generator=torch.Generator().manual_seed(1))


def plain_norm(x, delta, weight):
    total = x + delta
    return total, F.rms_norm(total, total.shape[-1:], weight, 1e-5)


def plain_swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


CASES = {  # ours, PyTorch's, shapes of the arguments
    "linear_cross_entropy": (
        lambda x, w: linear_cross_entropy(x, w, TARGETS.to(x.device), chunk=2),
        lambda x, w: F.cross_entropy(x @ w.T, TARGETS.to(x.device)),
        [(3, 8), (5, 8)],
    ),
    "packed_linear": (
        lambda x, *w: packed_linear(x, w),
        lambda x, *w: x @ torch.cat(w).T,
        [(3, 8), (5, 8), (2, 8)],
    ),
    "swiglu": (swiglu, plain_swiglu, [(3, 10)]),
    "swiglu_linear": (swiglu_linear, lambda x, w: plain_swiglu(x) @ w.T, [(3, 10), (4, 5)]),
    "add_rms_norm": (add_rms_norm, plain_norm, [(3, 6), (3, 6), (6,)]),
    "rms_norm": (
        lambda x, w: add_rms_norm(x, None, w)[1],
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5),
        [(3, 6), (6,)],
    ),
    "rotate_qkv": (
        lambda x: rotate_qkv(x * 1, ANGLES.cos().to(x.device), ANGLES.sin().to(x.device), 1),
        lambda x: rotated(x, torch.polar(torch.ones_like(ANGLES), ANGLES).to(x.device), (1, 1, 1)),
        [(2, 3, 12)],
    ),
    "fp8_linear": (fp8_linear, lambda x, w: x @ w.T, [(16, 16), (32, 16)]),
}

EXACT = [name for name in CASES if name != "fp8_linear"]
REFUSES = {"rms_norm": "add_rms_norm"}
"""The function that a case is refused by, where it has another name."""


def make_leaves(shapes, device="cpu", layout=lambda x: x):
    generator = torch.Generator().manual_seed(0)
    return [layout(torch.randn(shape, generator=generator).to(device)).requires_grad_() for shape in shapes]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def total(results, power):
    """Sum of powers: of one, whose own gradient requires none, and of two."""
    return sum(x.pow(power).sum() for x in as_tuple(results))


LAYOUTS = {
    "contiguous": torch.clone,
    "features apart": lambda x: x.mT.contiguous().mT if x.dim() > 1 else torch.stack((x, x), -1)[..., 0],
    "one row repeated": lambda x: x[:1].expand(x.shape) if x.dim() > 1 else x,
}


def gradients(function, leaves, given, used):
    """Gradients of all leaves, given some results' gradients by their numbers."""
    results = as_tuple(function(*leaves))
    return torch.autograd.grad(
        [results[n] for n in used], leaves, [given[n] for n in used], allow_unused=True, materialize_grads=True
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EXACT)
def test_inputs_and_gradients_of_any_layout(name, layout, device):
    """Also of gradients that differ in layout, and where only one result is used."""
    ours, plain, shapes = CASES[name]
    leaves = make_leaves(shapes, device, LAYOUTS[layout])
    results = as_tuple(ours(*leaves))
    torch.testing.assert_close(results, as_tuple(plain(*leaves)), rtol=1e-4, atol=1e-5)
    contiguous = make_leaves([result.shape for result in results], device)
    laid_out = [LAYOUTS[layout](gradient.detach()) for gradient in contiguous]
    numbers = range(len(results))
    mixed = [laid_out[n] if n % 2 else contiguous[n] for n in numbers]
    for used, given in ((numbers, laid_out), (numbers, mixed), *(([n], laid_out) for n in numbers)):
        got, want = (gradients(function, leaves, given, used) for function in (ours, plain))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


LARGE = {  # more elements than 32 bits can count: a function, and the shape of its argument in bf16
    "add_rms_norm": (lambda x: add_rms_norm(x, x, torch.ones(2**12).to(x)), (2**19 + 3, 2**12)),
    "swiglu": (swiglu, (2**19 + 3, 1, 2**13)),
    "rotate_qkv": (lambda x: rotate_qkv(x * 1, *angles_of(x), 32), (2**9 + 1, 2**10, 3 * 32 * 128)),
}


def angles_of(x):
    angles = torch.rand(x.shape[1], 64, generator=torch.Generator().manual_seed(1)).to(x.device)
    return angles.cos(), angles.sin()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_more_elements_than_32_bits_can_count(name):
    need_gpu_memory(50)
    function, shape = LARGE[name]
    leaf = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    leaf[-3:].normal_()
    last = leaf[-3:].clone().requires_grad_()
    got, want = as_tuple(function(leaf.requires_grad_())), as_tuple(function(last))
    assert all(torch.equal(x[-3:], y) for x, y in zip(got, want, strict=True))
    for results in (got, want):
        torch.autograd.backward(results, [result.detach() for result in results])
    assert torch.equal(leaf.grad[-3:], last.grad)


@pytest.mark.parametrize("name", EXACT)
def test_a_frozen_argument_has_no_gradient(name, device):
    ours, plain, shapes = CASES[name]
    for frozen in range(len(shapes) if len(shapes) > 1 else 0):
        leaves = make_leaves(shapes, device)
        leaves[frozen].requires_grad_(False)
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        want = torch.autograd.grad(total(plain(*leaves), 2), trained)
        total(ours(*leaves), 2).backward()
        assert leaves[frozen].grad is None
        torch.testing.assert_close([leaf.grad for leaf in trained], [*want], rtol=1e-4, atol=1e-5)


def penalty(function, leaves, of, power):
    """Gradients of all leaves of a penalty on the gradient of one; zero where it does not depend on them."""
    (gradient,) = torch.autograd.grad(total(function(*leaves), power), of, create_graph=True)
    value = gradient.square().sum() + sum(0 * leaf.sum() for leaf in leaves)
    return torch.autograd.grad(value, leaves)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_gradient_penalty_is_pytorchs_or_refused(name, power):
    ours, plain, shapes = CASES[name]
    leaves = make_leaves(shapes)
    for of in leaves:
        try:
            got = penalty(ours, leaves, of, power)
        except NotImplementedError as error:
            refusal = str(error)
            got = None
        if got is None:
            assert refusal == f"{REFUSES.get(name, name)} cannot be differentiated twice (create_graph=True)."
        else:
            torch.testing.assert_close(got, penalty(plain, leaves, of, power), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_transforms_are_pytorchs(name):
    ours, plain, shapes = CASES[name]
    first, *rest = (leaf.detach() for leaf in make_leaves(shapes))
    batch = torch.stack((first, 2 * first))

    def results(function):
        def loss(x):
            return total(function(x, *rest), 2)

        each = function(first, *rest)
        return (
            torch.func.grad(loss)(first),
            torch.func.hessian(loss)(first),
            torch.func.vmap(torch.func.grad(loss))(batch),
            torch.func.jvp(loss, (first,), (first.cos(),))[1],
            torch.func.vmap(lambda x: function(x, *rest))(batch)[0] if isinstance(each, torch.Tensor) else None,
        )

    torch.testing.assert_close(results(ours), results(plain), rtol=1e-4, atol=1e-5)


def test_tables_that_are_trained_have_their_gradient():
    (qkv,) = make_leaves([(1, 3, 12)])
    cos, sin = ANGLES.cos().requires_grad_(), ANGLES.sin().requires_grad_()
    total(rotate_qkv(qkv * 1, cos, sin, 1), 2).backward()
    c, s = (t.detach().double().requires_grad_() for t in (cos, sin))
    want = torch.autograd.grad(total(rotated(qkv.detach().double(), torch.complex(c, s), (1, 1, 1)), 2), (c, s))
    for got, exact in zip((cos.grad, sin.grad), want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)
