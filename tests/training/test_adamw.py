"""MasterAdamW against torch.optim.AdamW on fp32 copies, in PyTorch and by its kernel through Triton's interpreter."""

import copy

import pytest
import torch
from torch import nn

from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.clipping import clip_scale
from cs336_systems.training.master_weights import join_master, split_master

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [(5,), (64, 65), (3, 7, 11), (1,), (4096 + 24,), ()]
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def make_parameters(dtype=torch.bfloat16, device="cpu", shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in shapes]


def twins(parameters):
    """fp32 copies."""
    return [nn.Parameter(p.detach().float()) for p in parameters]


def set_gradients(parameters, references, seed, factor=1.0):
    """The same random gradients for both, except one of them, which has none in some steps."""
    generator = torch.Generator().manual_seed(seed)
    for number, (parameter, reference) in enumerate(zip(parameters, references, strict=True)):
        gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (number % 7 - 3)
        missing = number == 1 and seed % 3 == 0
        parameter.grad = None if missing else gradient.to(parameter.device, parameter.dtype)
        reference.grad = None if missing else parameter.grad.float() * factor


def assert_masters_equal(optimizer, parameters, references, steps):
    masters = optimizer.masters()
    for parameter, reference in zip(parameters, references, strict=True):
        # Each step rounds weight and moments a few times in another order; weights of size 1 move by 0.01 per step.
        torch.testing.assert_close(masters[parameter], reference.detach(), rtol=3e-7 * steps**0.5, atol=2e-8 * steps)


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masters_are_those_of_adamw_in_fp32(dtype, device):
    parameters = make_parameters(dtype, device)
    references = twins(parameters)
    optimizer, reference = MasterAdamW(parameters, **OPTIONS), torch.optim.AdamW(references, **OPTIONS)
    scale = torch.tensor(0.5, device=device)
    for step in range(100):
        for groups in (optimizer.param_groups, reference.param_groups):
            groups[0]["lr"] = 1e-2 * (1 - step / 200)
        set_gradients(parameters, references, step, factor=0.5)
        optimizer.step(scale=scale)
        reference.step()
    assert_masters_equal(optimizer, parameters, references, 100)
    for parameter in parameters:
        weight, _ = split_master(optimizer.masters()[parameter])
        assert dtype is torch.float32 or torch.equal(parameter.detach(), weight)
        assert optimizer.state[parameter]["exp_avg"].dtype is torch.float32


EDGES = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.17e-38, 3.38e38, -3.4028235e38, float("inf"), -float("inf")]


def special_values():
    """fp32 numbers around every kind of edge, and ties between two bf16 numbers of both signs."""
    near = torch.tensor(EDGES).view(torch.int32)
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x00008000, 0x7F7F8000], dtype=torch.int32)
    bits = torch.cat([near, ties, ties + 1, ties - 1, ties + 0x7FFF, ties | -(2**31)])
    values = bits.view(torch.float32)
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (10_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = torch.cat([values, random.view(torch.float32)])
    return values[~values.isnan()]


def test_the_split_is_exact():
    values = special_values()
    weight, remainder = split_master(values)
    assert (weight.dtype, remainder.dtype) == (torch.bfloat16, torch.int16)
    assert torch.equal(join_master(weight, remainder).view(torch.int32), values.view(torch.int32))
    finite = values.isfinite() & (values.abs() < 3.38e38)
    exact, nearest = values[finite].double(), values[finite].to(torch.bfloat16).double()
    rounded = weight[finite].double()
    assert torch.equal((rounded - exact).abs(), (nearest - exact).abs()), "the weight is a nearest bf16 number"
    ties = (rounded - exact).abs() == (exact - join_master(weight, torch.full_like(remainder, -(2**15)))[finite]).abs()
    assert (rounded[ties].abs() >= exact[ties].abs()).all(), "ties go away from zero"


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001])
def test_nan_stays_nan(bits):
    weight, remainder = split_master(torch.tensor([bits], dtype=torch.int32).view(torch.float32))
    assert weight.isnan().all()
    assert join_master(weight, remainder).isnan().all()


def test_masters_of_the_cast_model_are_kept():
    references = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    parameters = [nn.Parameter(r.detach().bfloat16()) for r in references]
    optimizer = MasterAdamW(parameters, **OPTIONS)
    optimizer.load_masters(dict(zip(parameters, references, strict=True)))
    for parameter, reference in zip(parameters, references, strict=True):
        assert torch.equal(optimizer.masters()[parameter], reference.detach())


def train(optimizer, parameters, steps):
    for step in steps:
        set_gradients(parameters, twins(parameters), step)
        optimizer.step()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_state_dict_round_trips_exactly(dtype, device):
    whole = make_parameters(dtype, device)
    optimizer = MasterAdamW(whole, **OPTIONS)
    train(optimizer, whole, range(5))
    resumed = [nn.Parameter(p.detach().clone()) for p in whole]
    other = MasterAdamW(resumed, lr=1.0)
    other.prepare()
    kept = other.state[resumed[0]]["exp_avg"]
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[resumed[0]]["exp_avg"] is kept, "a graph may hold it"
    for opt, parameters in ((optimizer, whole), (other, resumed)):
        train(opt, parameters, range(5, 8))
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(optimizer.masters()[a], other.masters()[b])
    assert other.param_groups[0]["lr"] == OPTIONS["lr"]


def test_a_state_of_torch_adamw_loads():
    references = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    reference = torch.optim.AdamW(references, **OPTIONS)
    parameters = [nn.Parameter(r.detach().bfloat16()) for r in references]
    for step in range(3):
        set_gradients(parameters, references, step)
        reference.step()
    optimizer = MasterAdamW(parameters)
    optimizer.load_masters(dict(zip(parameters, references, strict=True)))
    optimizer.load_state_dict(reference.state_dict())
    for step in range(3, 10):
        set_gradients(parameters, references, step)
        optimizer.step()
        reference.step()
    assert_masters_equal(optimizer, parameters, references, 10)


def test_a_tensor_of_another_shape_is_not_loaded():
    optimizer, other = (MasterAdamW(make_parameters(shapes=[shape])) for shape in ((3,), (1,)))
    other.prepare()
    with pytest.raises(ValueError, match=r"exp_avg is of shape \[1\]; allowed: its parameter's, \[3\]"):
        optimizer.load_state_dict(other.state_dict())


def test_frozen_tied_and_transposed_parameters():
    frozen, tied, turned = make_parameters(shapes=[(4,), (6, 5), (5, 6)])
    frozen.requires_grad_(False)
    turned = nn.Parameter(turned.detach().T)
    before, references = frozen.clone(), twins([tied, turned])
    module = nn.Module()
    module.a, module.b, module.c, module.d = frozen, tied, tied, turned
    optimizer = MasterAdamW(module.parameters(), **OPTIONS)
    reference = torch.optim.AdamW(references, **OPTIONS)
    for x, y in ((tied, turned), references):
        (x * 3 + y * 2 + x.square()).sum().backward()
    for p, r in zip((tied, turned), references, strict=True):
        r.grad = p.grad.float()
    optimizer.step()
    reference.step()
    assert torch.equal(frozen, before)
    assert frozen not in optimizer.state
    assert_masters_equal(optimizer, (tied, turned), references, 1)


@pytest.mark.parametrize("device", DEVICES)
def test_updates_under_the_backward_pass_are_those_of_the_step(device):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 3)).to(device, torch.bfloat16)

    x = torch.randn(16, 24, dtype=torch.bfloat16, device=device)
    after, under = model(), model()
    optimizers = [MasterAdamW(m.parameters(), **OPTIONS) for m in (after, under)]
    handle = optimizers[1].during_backward()
    with pytest.raises(RuntimeError, match="already run under"):
        optimizers[1].during_backward()
    for _ in range(3):
        for m in (after, under):
            m(x).square().mean().backward()
        assert all(p.grad is None for p in under.parameters())
        for optimizer in optimizers:
            optimizer.step()
        optimizers[0].zero_grad()
    for p, q in zip(after.parameters(), under.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(ValueError, match="under the backward pass"):
        optimizers[1].step(scale=torch.ones(()))
    handle.remove()
    under(x).sum().backward()
    assert all(p.grad is not None for p in under.parameters())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("max_norm", [0.5, 1e4])
def test_clip_scale_is_that_of_clip_grad_norm(max_norm, device):
    parameters = make_parameters(torch.float32, device)
    set_gradients(parameters, twins(parameters), 1)
    parameters.append(parameters[0])
    before = [p.grad.double() for p in parameters[:-1]]
    scale = clip_scale(parameters, max_norm)
    torch.nn.utils.clip_grad_norm_(parameters[:-1], max_norm)
    assert scale.shape == ()
    assert scale.dtype is torch.float32
    for p, gradient in zip(parameters, before, strict=False):
        torch.testing.assert_close((gradient * scale.double()).float(), p.grad, rtol=1e-6, atol=0)


def refused(match, **options):
    with pytest.raises(ValueError, match=match):
        MasterAdamW(options.pop("params", make_parameters()), **options)


def test_what_is_not_supported_is_refused_by_name():
    refused("does not support amsgrad=True", amsgrad=True)
    refused("does not support maximize=True", maximize=True)
    refused("dtype torch.complex64", params=[nn.Parameter(torch.randn(3, dtype=torch.complex64))])
    refused("dtype torch.float16", params=[nn.Parameter(torch.randn(3).half())])
    refused("has gaps in memory", params=[torch.randn(6)[::2].requires_grad_()])
    refused(r"beta1 is 1.0; allowed: numbers in \[0, 1\)", betas=(1.0, 0.9))
    refused("lr is -1", lr=-1)
    with pytest.raises(TypeError, match="no argument learning_rate"):
        MasterAdamW(make_parameters(), learning_rate=1)
    (parameter,) = make_parameters(torch.float32, shapes=[(4, 2)])
    nn.functional.embedding(torch.tensor([1]), parameter, sparse=True).sum().backward()
    with pytest.raises(ValueError, match="sparse gradients"):
        MasterAdamW([parameter]).step()
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        clip_scale(make_parameters(), 1.0)
    (parameter,) = make_parameters(shapes=[(3,)])
    with pytest.raises(ValueError, match=r"a gradient is of dtype torch\.float16; allowed: its parameter.s, "):
        MasterAdamW([parameter]).step(gradients={parameter: torch.ones(3).half()})


def interpreted() -> None:
    """Run the kernel on the CPU: whole and partial chunks, misaligned and special values, both dtypes."""
    from cs336_systems.training import triton_adamw

    triton_adamw.TUNING = triton_adamw.Tuning(block=32)
    for dtype in (torch.bfloat16, torch.float32):
        storage, short = torch.randn(100).to(dtype), [(1,)] * 28  # more tensors than one launch prepares
        parameters = make_parameters(dtype, shapes=[(5,), (8, 8), (3, 7), (32,), (), *short])
        parameters.append(nn.Parameter(storage[1:65]))
        references = twins(parameters)
        groups = [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.0}]
        optimizer = MasterAdamW(groups, **OPTIONS)
        groups = [{"params": references[:3]}, {"params": references[3:], "weight_decay": 0.0}]
        reference = torch.optim.AdamW(groups, **OPTIONS)
        for step in range(2):
            set_gradients(parameters, references, step, factor=0.5)
            wide = {p: p.grad.float() for p in parameters[:2] if step and p.grad is not None}
            optimizer.step(scale=torch.tensor(0.5), gradients=wide)
            reference.step()
        assert_masters_equal(optimizer, parameters, references, 2)
    values = special_values()[:60]
    parameter = nn.Parameter(values.bfloat16())
    optimizer = MasterAdamW([parameter], lr=0.0)
    optimizer.load_masters({parameter: values})
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(optimizer.masters()[parameter].view(torch.int32), values.view(torch.int32)), "nothing moves"
    parameter.grad = torch.full_like(parameter, float("nan"))
    optimizer.step()
    assert parameter.isnan().all()
