"""FP8 linear layers against float64, and against matmuls of what was rounded."""

import contextlib
from unittest import mock

import pytest
import torch
from torch import nn

from cs336_systems.attention import flash_attention
from cs336_systems.model import TransformerLM
from cs336_systems.training import fp8, fp8_swiglu, spare_sms
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.checkpointing import checkpoint_blocks
from cs336_systems.training.dispatch import HAS_TRITON
from cs336_systems.training.fp8 import Fp8Linear, fp8_linear, use_fp8
from cs336_systems.training.fp8_formats import E4M3, E5M2
from cs336_systems.training.fp8_operands import matmul, round_operand
from cs336_systems.training.fused_model import fuse

if HAS_TRITON:
    from cs336_systems.training import triton_fp8
    from cs336_systems.training.triton_fp8 import CURRENT, GRADIENT, INPUT, WEIGHT, AmaxHistory, round_matrix
    from cs336_systems.training.triton_fp8_swiglu import swiglu_fp8, swiglu_fp8_backward

FP8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs FP8 tensor cores"
)
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, FP8])]


ROUNDED = {E4M3: 0.03, E5M2: 0.06}
"""The most that rounding changes a tensor, relative to its norm."""


def results(function, x, weight, grad):
    leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))


def make_inputs(device, outlier=1.0):
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(shape, generator=generator) for shape in ((3, 16, 48), (80, 48), (3, 16, 80)))
    x[0, 0] *= outlier
    return [t.to(device, torch.bfloat16) for t in (x, weight / 7, grad * 1e-4)]


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_error_is_that_of_the_format(dtype, rowwise, device):
    inputs = make_inputs(device)
    exact = results(lambda x, w: x @ w.T, *(t.double() for t in inputs))
    ours = results(lambda x, w: fp8_linear(x, w, rowwise=rowwise, gradient_dtype=dtype), *inputs)
    # Rounding to 3 (2) bits of mantissa is off by 2.6 % (5.1 %) in the mean square. A sum of products has the error of
    # its terms, which have two roundings.
    limit = {E4M3: 0.045, E5M2: 0.07}
    for x, reference, allowed in zip(ours, exact, (limit[E4M3], limit[dtype], limit[dtype]), strict=True):
        assert x.dtype is torch.bfloat16
        error = (x.double() - reference).norm() / reference.norm()
        assert 0.01 < error < allowed, "rounded to FP8, and no worse"


@pytest.mark.parametrize("device", DEVICES)
def test_one_scale_per_row_confines_an_outlier(device):
    inputs = make_inputs(device, outlier=1e6)
    exact = results(lambda x, w: x @ w.T, *(t.double() for t in inputs))[0]

    def error(rowwise):
        y = results(lambda x, w: fp8_linear(x, w, rowwise=rowwise), *inputs)[0]
        return ((y.double() - exact)[1:].norm() / exact[1:].norm()).item()

    assert error(rowwise=True) < 0.045 < 0.5 < error(rowwise=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rowwise", [False, True])
def test_numbers_that_fp8_holds_are_exact(rowwise, device):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randint(-7, 8, s, generator=generator).float() for s in ((32, 48), (64, 48), (32, 64))]
    for t in inputs:
        t[0], t[:, 0] = 7, 7  # so that all scales are 7 / 448 or 7 / 57344 and all integers up to 7 have few bits
    inputs = [t.to(device, torch.bfloat16) for t in inputs]
    expected = results(lambda x, w: x @ w.T, *(t.double() for t in inputs))
    ours = results(lambda x, w: fp8_linear(x, w, rowwise=rowwise, gradient_dtype=E4M3), *inputs)
    for x, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(x.double(), reference, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_and_frozen_weights(device):
    x, weight = torch.zeros(16, 32, device=device, requires_grad=True), torch.randn(16, 32, device=device)
    y = fp8_linear(x, weight)
    y.sum().backward()
    assert (y == 0).all()
    assert x.grad.isfinite().all()
    (grad,) = torch.autograd.grad(fp8_linear(x.detach() + 1, weight.requires_grad_()).sum(), weight)
    torch.testing.assert_close(grad, torch.full_like(grad, 16.0))


@pytest.mark.parametrize("device", DEVICES)
def test_several_weights_share_a_matmul(device):
    x, weight, grad = make_inputs(device)
    first, second = (nn.Parameter(part.clone()) for part in weight.split([48, 32]))
    whole = results(fp8_linear, x, weight, grad)
    leaf = x.detach().requires_grad_()
    y = fp8_linear(leaf, (first, second))
    y.backward(grad)
    for a, b in zip((y, leaf.grad, torch.cat([first.grad, second.grad])), whole, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@FP8
@pytest.mark.parametrize("shape", [(16, 16), (80, 144), (4096, 2560)])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_kernels_round_as_pytorch_does(dtype, shape):
    x = torch.randn(shape, device="cuda").exp().sub(1).bfloat16()
    (by_row, scale, by_column, _), limit = round_operand(x, dtype, False, columns=True), torch.finfo(dtype).max
    # By a tensor: PyTorch multiplies by the reciprocal of a number.
    largest = x.abs().amax().float()
    assert scale == largest / torch.tensor(limit, device="cuda")
    expected = (x.float() * (torch.tensor(limit, device="cuda") / largest)).clamp(-limit, limit).to(dtype)
    assert torch.equal(by_row.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(by_column.T.view(torch.uint8), expected.view(torch.uint8))


def make_model(device, num_layers=2):
    torch.manual_seed(0)
    with torch.device(device):
        return TransformerLM(100, 16, 32, num_layers, 2, 48, 1e4, attention=flash_attention)


def loss_of(model, tokens=32):
    ids = torch.arange(tokens, device=model.lm_head.weight.device).view(-1, 16) % 100
    return model(ids).float().square().mean()


def relative_error(x, scale, reference):
    return ((x.double() * scale - reference).norm() / reference.norm()).item()


def on_kernels(function):
    """A test of kernels: on a GPU; `interpreted` calls it on a CPU."""
    marks = (pytest.mark.gpu, FP8, pytest.mark.parametrize("device", ["cuda"]))
    for mark in marks:
        function = mark(function)
    return function


@on_kernels
def test_delayed_scaling_leaves_twice_the_room_of_the_step_before(device):
    history = AmaxHistory(torch.device(device))
    for step, (factor, expected) in enumerate(((1.0, 1.0), (0.5, 2.0), (3.0, 1.0), (0.0, 6.0), (1.0, 6.0))):
        x = factor * torch.arange(-40 * 48, 40 * 48, device=device).view(80, 48).bfloat16() / (40 * 48)
        history.advance()
        by_row, by_column, scale = round_matrix(x, E4M3, True, history[WEIGHT])
        assert scale.item() == pytest.approx(expected / 448), f"step {step}"
        exact = x.double().clamp(-expected, expected)  # the third step's are larger than the room
        assert not factor or relative_error(by_row, scale, exact) < ROUNDED[E4M3]
        assert torch.equal(by_row, by_column.T.contiguous())


@on_kernels
@pytest.mark.parametrize("shape", [(16, 16), (80, 144), (1040, 2736)])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_swiglu_is_rounded_where_it_is_computed(dtype, shape, device):
    tokens, d_ff = shape
    generator = torch.Generator().manual_seed(0)
    sizes = (tokens, 2 * d_ff), (tokens, d_ff)
    gate_up, d_hidden = (torch.randn(s, generator=generator).to(device, torch.bfloat16) for s in sizes)
    leaf = gate_up.double().requires_grad_()
    gate, up = leaf.chunk(2, -1)
    exact = nn.functional.silu(gate) * up
    (gradient,) = torch.autograd.grad(exact, leaf, d_hidden.double())
    history = AmaxHistory(torch.device(device))
    for amaxes, room in ((None, 1), (history, 1), (history, 2)):  # current scaling, and the first two delayed steps
        history.advance()
        of_hidden, of_gradient = (CURRENT, CURRENT) if amaxes is None else (amaxes[INPUT], amaxes[GRADIENT])
        hidden, scale = swiglu_fp8(gate_up, of_hidden)
        result = swiglu_fp8_backward(gate_up, d_hidden, scale, dtype, of_gradient)
        assert scale.item() == pytest.approx(room * exact.abs().max().item() / 448, rel=0.01)
        limit = torch.finfo(dtype).max
        assert result.scale.item() == pytest.approx(room * gradient.abs().max().item() / limit, rel=0.01)
        assert relative_error(hidden, scale, exact) < ROUNDED[E4M3]
        assert relative_error(result.hidden.T, scale, exact) < ROUNDED[E4M3]
        assert relative_error(result.rows, result.scale, gradient) < ROUNDED[dtype]
        assert torch.equal(result.rows, result.columns.T.contiguous())


@on_kernels
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_model_with_delayed_scaling_has_the_gradients_of_the_others(checkpoint, device):
    models = [make_model(device, num_layers=1) for _ in range(2)]
    for model in models:  # The gradients of the two halves of SwiGLU then differ in size.
        model.blocks[0].feed_forward.down.weight.data.mul_(32)
    plain, ours = (fuse(model).to(torch.bfloat16) for model in models)
    use_fp8(ours, delayed=True)
    gradients = []
    for model in (plain, ours):
        if checkpoint:
            checkpoint_blocks(model)
        for _ in range(2):
            model.zero_grad()
            loss_of(model).backward()
        gradients.append([p.grad for p in model.parameters()])
    of_gate, of_down = (getattr(ours.blocks[0].feed_forward, name).history for name in ("gate", "down"))
    assert of_gate[GRADIENT].next > 4 * of_down[GRADIENT].next > 0
    for a, b in zip(*gradients, strict=True):
        assert (a - b).norm() < 5 * ROUNDED[E5M2] * a.norm()


def interpreted() -> None:
    """Run the kernels on the CPU, where fp32 is not rounded to the nearest number of FP8."""
    triton_fp8.PARTS, triton_fp8.AMAX_BLOCK = 4, 64  # several blocks for each program
    rising = torch.arange(64 * 64).view(64, 64).bfloat16()
    assert round_matrix(rising, E4M3, False)[2].item() == pytest.approx(rising.max().item() / 448)
    ROUNDED.update({E4M3: 0.1, E5M2: 0.15})
    test_delayed_scaling_leaves_twice_the_room_of_the_step_before("cpu")
    for dtype in (E4M3, E5M2):
        test_swiglu_is_rounded_where_it_is_computed(dtype, (80, 144), "cpu")
    test_a_model_with_delayed_scaling_has_the_gradients_of_the_others(False, "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_a_fused_model_computes_what_the_plain_one_does(device):
    losses, gradients = [], []
    for model in (make_model(device), fuse(make_model(device))):
        model.to(torch.bfloat16)
        assert list(use_fp8(model)) == ["lm_head"]
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)
    for a, b in zip(*gradients, strict=True):
        assert (a - b).norm() < 0.25 * a.norm(), "rounded at other places"


def test_layers_that_do_not_fit_are_left():
    model = TransformerLM(100, 16, 32, 2, 2, 40, 1e4)
    names = list(model.state_dict())
    left = use_fp8(model)
    assert set(left) == {"lm_head", *(f"blocks.{i}.feed_forward.{n}" for i in (0, 1) for n in ("gate", "up", "down"))}
    assert left["blocks.0.feed_forward.up"] == "40 features are not a multiple of 16"
    assert sum(isinstance(m, Fp8Linear) for m in model.modules()) == 8
    assert list(model.state_dict()) == names


@pytest.mark.gpu
@FP8
def test_matmuls_leave_sms_to_updates_under_the_backward_pass():
    model, left = fuse(make_model("cuda")).to(torch.bfloat16), []
    use_fp8(model, delayed=True)
    optimizer = MasterAdamW(model.parameters())

    def run():
        left.clear()
        loss_of(model, tokens=4096).backward()

    def observed(*arguments, fast, **options):
        left.append((fast, torch._C._get_sm_carveout_experimental()))
        return matmul(*arguments, fast=fast, **options)

    with mock.patch.object(fp8, "matmul", observed), mock.patch.object(fp8_swiglu, "matmul", observed):
        run()
        assert {sms for _, sms in left} == {None}, "the update runs later"
        optimizer.during_backward()
        run()
    assert {sms for fast, sms in left if fast} == {None}
    spared = 16 if torch.cuda.get_device_capability() == (9, 0) else None
    assert {sms for fast, sms in left if not fast} == {spared}
    assert torch._C._get_sm_carveout_experimental() is None
    assert not spare_sms.updating


def test_more_tokens_leave_fewer_sms(monkeypatch):
    monkeypatch.setattr(spare_sms, "compute_capability", lambda device: (9, 0))
    spared = torch._C._get_sm_carveout_experimental
    with spare_sms.leave_sms(torch.empty(4096, 0)):
        assert spared() is None, "no update runs"
    monkeypatch.setattr(spare_sms, "updating", {torch.device("cpu")})
    for tokens, sms in ((512, 16), (4096, 16), (16384, 4), (2**20, None)):
        with contextlib.suppress(RuntimeError), spare_sms.leave_sms(torch.empty(tokens, 0)):
            assert spared() == sms
            raise RuntimeError("of a matmul")
        assert spared() is None
    monkeypatch.setattr(torch._C, "_get_sm_carveout_experimental", lambda: 8)
    with spare_sms.leave_sms(torch.empty(4096, 0)):
        assert spared() is None, "the caller's choice is kept"


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_is_left_is_what_does_not_run_in_fp8():
    model = fuse(make_model("cpu"), keep_hidden=False)
    first, second = model.blocks
    second.attention.output = Doubled(32, 32, bias=False)
    second.feed_forward.up.forward = second.feed_forward.up.forward
    left = use_fp8(model, keep=("lm_head", "blocks.0.attention.key"))
    assert left == {
        "blocks.0.attention.key": "named by keep",
        "blocks.1.attention.output": "is a Doubled",
        "blocks.1.feed_forward.up": "its forward method was replaced",
        "lm_head": "named by keep",
    }
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    count, inner = [], fp8.matmul
    with mock.patch.object(fp8, "matmul", lambda *a, **o: (count.append(len(a[2])), inner(*a, **o))[1]):
        model(torch.zeros(1, 16, dtype=torch.long))
    fp8_outputs = sum(m.out_features for name, m in layers.items() if name not in left)
    assert sum(count) == fp8_outputs, "all others run in FP8, packed or not"
    assert isinstance(first.feed_forward.down, Fp8Linear)


def test_a_second_call_converts_what_the_first_one_kept():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 32))
    assert use_fp8(model, keep=("0",)) == {"0": "named by keep"}
    assert use_fp8(model) == {}
    with pytest.raises(ValueError, match="all layers that can run in FP8 already do"):
        use_fp8(model)


def test_a_compiled_layer_computes_the_same():
    x, weight, grad = make_inputs("cpu")
    eager = results(fp8_linear, x, weight, grad)
    compiled = results(torch.compile(fp8_linear, backend="aot_eager", fullgraph=True), x, weight, grad)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


def test_mistakes_are_refused():
    x, weight, _ = make_inputs("cpu")
    for arguments, match in (
        ((x[:0], weight), "0 tokens; allowed: multiples of 16"),
        ((x[0, :9], weight), "9 tokens; allowed: multiples of 16"),
        ((x[..., :40], weight[:, :40]), "40 d_in"),
        ((x, weight[:, :32]), r"shapes \[3, 16, 48\] and \[80, 32\]"),
        ((x, weight[:40]), "40 d_out"),
    ):
        with pytest.raises(ValueError, match=match):
            fp8_linear(*arguments)
    with pytest.raises(ValueError, match="gradient_dtype is torch"):
        fp8_linear(x, weight, gradient_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"keep names \['head'\]"):
        use_fp8(nn.Sequential(nn.Linear(16, 16)), keep=["head"])
    with pytest.raises(ValueError, match="no linear layer of the model can run in FP8"):
        use_fp8(nn.Sequential(nn.Linear(16, 17)))
    with pytest.raises(ValueError, match="no linear layer of the model can run in FP8: it has none"):
        use_fp8(nn.ReLU())
    with pytest.raises(ValueError, match="delayed excludes rowwise"):
        use_fp8(nn.Linear(16, 16), delayed=True, rowwise=True)
