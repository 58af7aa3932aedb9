"""MasterAdamW against torch.optim.AdamW on fp32 copies, in PyTorch and by its kernel through Triton's interpreter."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.clipping import clip_scale
from cs336_systems.training.master_weights import join_master, split_master
from tests.support.models import through_a_file

MIXED = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
SHAPES = [(5,), (64, 65), (3, 7, 11), (1,), (4096 + 24,), ()]
TWO = [(3,), (2, 2)]
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def make_parameters(dtype=torch.bfloat16, device="cpu", shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in shapes]


def twins(parameters):
    """fp32 copies."""
    return [nn.Parameter(p.detach().float()) for p in parameters]


def set_gradients(parameters, references, seed, factor=1.0):
    """The same random gradients for both, in their parameters' layout in every other step; one has none in some."""
    generator = torch.Generator().manual_seed(seed)
    for number, (parameter, reference) in enumerate(zip(parameters, references, strict=True)):
        gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (number % 7 - 3)
        missing = number == 1 and seed % 3 == 0
        gradient = gradient.to(parameter.device, parameter.dtype)
        if seed % 2:
            gradient = torch.empty_like(parameter).copy_(gradient)
        parameter.grad = None if missing else gradient
        reference.grad = None if missing else parameter.grad.float() * factor


def assert_masters_equal(optimizer, parameters, references, steps):
    masters = optimizer.masters()
    for parameter, reference in zip(parameters, references, strict=True):
        # Each step rounds weight and moments a few times in another order; weights of size 1 move by 0.01 per step.
        torch.testing.assert_close(masters[parameter], reference.detach(), rtol=3e-7 * steps**0.5, atol=2e-8 * steps)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masters_are_those_of_adamw_in_fp32(dtype, device):
    parameters = make_parameters(dtype, device)
    references = twins(parameters)
    frozen = nn.Parameter(torch.ones(3, device=device), requires_grad=False)
    optimizer, reference = MasterAdamW([*parameters, frozen], **OPTIONS), torch.optim.AdamW(references, **OPTIONS)
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
    assert frozen not in optimizer.state


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


def train(optimizer, parameters, steps):
    for step in steps:
        set_gradients(parameters, twins(parameters), step)
        optimizer.step()


def trained(dtype=torch.bfloat16, device="cpu", shapes=TWO, steps=range(1, 3)):
    """Parameters and their optimizer after some steps."""
    parameters = make_parameters(dtype, device, shapes)
    optimizer = MasterAdamW(parameters, **OPTIONS)
    train(optimizer, parameters, steps)
    return parameters, optimizer


def test_a_state_of_torch_adamw_loads():
    references = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    reference = torch.optim.AdamW(references, **OPTIONS)
    parameters = [nn.Parameter(r.detach().bfloat16()) for r in references]
    for step in range(3):
        set_gradients(parameters, references, step)
        reference.step()
    optimizer = MasterAdamW(parameters)
    optimizer.load_masters(dict(zip(parameters, references, strict=True)))
    kept = optimizer.state[parameters[0]]["exp_avg"]
    optimizer.load_state_dict(reference.state_dict())
    assert optimizer.state[parameters[0]]["exp_avg"] is kept, "a graph may hold it"
    for step in range(3, 10):
        set_gradients(parameters, references, step)
        optimizer.step()
        reference.step()
    assert_masters_equal(optimizer, parameters, references, 10)


def saved_by(make, shapes):
    """A state dict after a step."""
    parameters = make_parameters(torch.float32, shapes=shapes)
    optimizer = make(parameters)
    train(optimizer, parameters, [1])
    return optimizer.state_dict()


def without(state_dict, name):
    for group in state_dict["param_groups"]:
        group.pop(name)
    return state_dict


def whole_state(optimizer):
    """State that a refusal must not change."""
    return copy.deepcopy((optimizer.param_groups, dict(optimizer.state), [*optimizer.masters().values()]))


def assert_unchanged(optimizer, before):
    (groups, state, masters), (groups_before, state_before, masters_before) = whole_state(optimizer), before
    assert [{**g, "params": 0} for g in groups] == [{**g, "params": 0} for g in groups_before]
    torch.testing.assert_close([*state.values()], [*state_before.values()], rtol=0, atol=0, equal_nan=True)
    assert all(map(torch.equal, masters, masters_before))


REFUSED_STATES = {
    r"exp_avg is of shape \[1\]; allowed: its parameter's, \[2, 2\]": lambda: saved_by(MasterAdamW, [(3,), (1,)]),
    r"groups of \[1\] parameters; allowed: \[2\]": lambda: saved_by(MasterAdamW, [(3,)]),
    "does not support amsgrad=True": lambda: saved_by(lambda p: torch.optim.AdamW(p, amsgrad=True), TWO),
    "does not support decoupled_weight_decay=False": lambda: saved_by(torch.optim.Adam, TWO),
    "a group has no betas": lambda: saved_by(torch.optim.SGD, TWO),
    "a state has no step": lambda: {
        **saved_by(MasterAdamW, TWO),
        "state": saved_by(lambda p: torch.optim.SGD(p, momentum=0.9), TWO)["state"],
    },
    "a group has no eps": lambda: without(saved_by(MasterAdamW, TWO), "eps"),
    "remainder is of dtype torch.float32": lambda: {
        **(state := saved_by(MasterAdamW, TWO)),
        "state": {n: {**s, "remainder": s["exp_avg"]} for n, s in state["state"].items()},
    },
}


@pytest.mark.parametrize("match", REFUSED_STATES)
def test_a_state_that_is_refused_changes_nothing(match):
    _, optimizer = trained()
    before, state_dict = whole_state(optimizer), REFUSED_STATES[match]()
    with pytest.raises(ValueError, match=match):
        optimizer.load_state_dict(state_dict)
    assert_unchanged(optimizer, before)


def test_hooks_of_load_state_dict_see_the_state():
    parameters = make_parameters(shapes=TWO)
    optimizer, seen = MasterAdamW(parameters), []

    def double(optimizer, state_dict):
        state_dict["state"][0]["exp_avg"] = 2 * state_dict["state"][0]["exp_avg"]

    optimizer.register_load_state_dict_pre_hook(double)
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.state[parameters[0]]["exp_avg"].clone()))
    saved = saved_by(MasterAdamW, TWO)
    expected = 2 * saved["state"][0]["exp_avg"]
    optimizer.load_state_dict(saved)
    assert torch.equal(seen[0], expected)


def test_a_state_without_a_parameter_resets_it():
    parameters = make_parameters(shapes=TWO)
    optimizer = MasterAdamW(parameters)
    fresh = optimizer.state_dict()
    train(optimizer, parameters, range(1, 3))
    kept = optimizer.state[parameters[0]]["exp_avg"]
    optimizer.load_state_dict(fresh)
    assert optimizer.state[parameters[0]]["exp_avg"] is kept
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())


def test_updates_under_the_backward_pass_end_with_their_handle(device):
    layer = nn.Linear(24, 40).to(device, torch.bfloat16)
    x = torch.randn(16, 24, dtype=torch.bfloat16, device=device)
    optimizer = MasterAdamW(layer.parameters(), **OPTIONS)
    handle = optimizer.during_backward()
    with pytest.raises(RuntimeError, match="already run during"):
        optimizer.during_backward()
    layer(x).sum().backward()
    assert all(p.grad is None for p in layer.parameters())
    with pytest.raises(ValueError, match="during the backward pass"):
        optimizer.step(scale=torch.ones(()))
    handle.remove()
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.5, 1.0), (0.5, 2.0), (1e4, 2.0), (0.5, 3.5), (0.5, torch.inf)])
@pytest.mark.parametrize(("dtypes", "rtol"), [(MIXED, 1e-2), ((torch.float32,) * 4, 1e-6)])
def test_clip_scale_is_that_of_clip_grad_norm(dtypes, rtol, max_norm, norm_type, device):
    """Several dtypes, an empty, a frozen and a repeated parameter; what is not finite spreads as in PyTorch."""
    sizes = zip((4, 5, 2, 0), dtypes, strict=True)
    parameters = [nn.Parameter(torch.ones(n, 3, dtype=dtype, device=device)) for n, dtype in sizes]
    filled = parameters[:3]
    frozen = nn.Parameter(torch.ones(3, device=device), requires_grad=False)
    for value in (1.0, torch.inf, torch.nan):
        for p in parameters:
            p.grad = torch.linspace(1, 2, p.numel()).view_as(p).to(p)
        parameters[0].grad[0, 0] = value
        before = parameters[0].grad.clone()
        scale = clip_scale([*parameters, frozen, parameters[0]], max_norm, norm_type)
        assert clip_scale(parameters[1], max_norm).equal(clip_scale([parameters[1]], max_norm))
        torch.nn.utils.clip_grad_norm_(filled, max_norm, norm_type)
        assert scale.shape == ()
        torch.testing.assert_close(before * scale.float(), parameters[0].grad, rtol=rtol, atol=0, equal_nan=True)
    for value in (0, -1, torch.nan):
        with pytest.raises(ValueError, match=f"norm_type is {value}; allowed: numbers above 0, and inf"):
            clip_scale(parameters, 0.5, value)


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
    refused(r"betas are \(0\.9,\); allowed: two numbers", betas=(0.9,))
    refused("lr is -1", lr=-1)
    for name, text in (("lr", "1e-3"), ("eps", None)):
        with pytest.raises(TypeError, match=f"{name} is {text!r}; allowed: numbers from 0"):
            MasterAdamW(make_parameters(), **{name: text})
    refused("betas are 0.9; allowed: two numbers", betas=0.9)
    with pytest.raises(TypeError, match="no argument learning_rate"):
        MasterAdamW(make_parameters(), learning_rate=1)
    (parameter,) = make_parameters(torch.float32, shapes=[(4, 2)])
    nn.functional.embedding(torch.tensor([1]), parameter, sparse=True).sum().backward()
    with pytest.raises(ValueError, match="sparse gradients"):
        MasterAdamW([parameter]).step()
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        clip_scale(make_parameters(), 1.0)


REFUSED_STEPS = {
    r"a gradient is of dtype torch\.float16; allowed: its parameter.s, ": {"gradient": torch.ones(2, 2).half()},
    r"a gradient is of shape \[2\]; allowed: its parameter's, \[2, 2\]": {"gradient": torch.ones(2)},
    r"a gradient is of shape \[1, 4\]; allowed": {"gradient": torch.ones(1, 4)},
    "a gradient is on meta; allowed: its parameter's device, cpu": {"gradient": torch.ones(2, 2, device="meta")},
    r"scale is a tensor of shape \[2\] and torch.float32; allowed: one real number": {"scale": torch.ones(2)},
    r"scale is a tensor of shape \[\] and torch.complex64": {"scale": torch.ones((), dtype=torch.complex64)},
    r"shape \[2, 2\] and strides \[4, 1\] has gaps in memory": {"data": torch.ones(2, 4).bfloat16()[:, :2]},
    r"exp_avg is of shape \[2, 2\]; allowed: its parameter's, \[4\]": {"data": torch.ones(4).bfloat16()},
    "a parameter is of dtype torch.float16": {"data": torch.ones(2, 2).half()},
}


@pytest.mark.parametrize("match", REFUSED_STEPS)
def test_a_step_that_is_refused_changes_nothing(match):
    parameters, optimizer = trained()
    case = REFUSED_STEPS[match]
    gradients = {parameters[1]: case["gradient"]} if "gradient" in case else None
    parameters[0].grad = torch.ones_like(parameters[0])
    if "data" in case:
        parameters[1].data = case["data"]
        parameters[1].grad = torch.ones_like(parameters[1])
    state, weight = copy.deepcopy(optimizer.state[parameters[0]]), parameters[0].clone()
    with pytest.raises(ValueError, match=match):
        optimizer.step(scale=case.get("scale"), gradients=gradients)
    torch.testing.assert_close(optimizer.state[parameters[0]], state, rtol=0, atol=0)
    assert torch.equal(parameters[0], weight)


def test_a_scale_is_one_number_of_any_kind():
    results = []
    for scale in (0.25, torch.tensor(0.25), torch.tensor([0.25]), torch.tensor([[0.25]], dtype=torch.float64)):
        parameters = make_parameters(shapes=[(), (3,)])
        optimizer = MasterAdamW(parameters, **OPTIONS)
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-8)  # about eps, where the update depends on the scale
        optimizer.step(scale=scale)
        results.append([*optimizer.masters().values()])
    assert all(torch.equal(x, y) for result in results for x, y in zip(result, results[0], strict=True))


def test_masters_that_are_refused_change_nothing():
    parameters = make_parameters(shapes=TWO)
    optimizer, (stranger,) = MasterAdamW(parameters), make_parameters(shapes=[(3,)])
    before = whole_state(optimizer)
    good = {parameters[0]: torch.ones(3)}
    with pytest.raises(ValueError, match=r"a master is of shape \[2\]; allowed: its parameter's, \[2, 2\]"):
        optimizer.load_masters({**good, parameters[1]: torch.ones(2)})
    with pytest.raises(ValueError, match=r"a parameter of shape \[3\] is not the optimizer's"):
        optimizer.load_masters({**good, stranger: torch.ones(3)})
    assert_unchanged(optimizer, before)
    optimizer.state_dict()


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_group_that_is_refused_is_not_added():
    parameters = make_parameters(shapes=TWO)
    optimizer = MasterAdamW(parameters, **OPTIONS)
    for group in ({"params": [torch.randn(3).half()]}, {"params": make_parameters(), "lr": -1}):
        with pytest.raises(ValueError, match="allowed"):
            optimizer.add_param_group(group)
        assert len(optimizer.param_groups) == 1
    train(optimizer, parameters, range(1, 3))
    refused("lists a parameter twice", params=[parameters[0], parameters[0]])
    refused("on the meta device", params=[nn.Parameter(torch.randn(3, device="meta"))])


def assert_trains_as_adamw(optimizer, parameters, state=None):
    """Further steps equal torch.optim.AdamW's from the same masters, moments and steps."""
    masters = optimizer.masters()
    references = [nn.Parameter(masters[p].detach().clone()) for p in parameters]
    reference = torch.optim.AdamW(references, **OPTIONS)
    if state is not None:
        reference.load_state_dict(state)
    for step in range(1, 6):
        set_gradients(parameters, references, step)
        optimizer.step()
        reference.step()
    assert_masters_equal(optimizer, parameters, references, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_state_that_was_cleared_begins_anew(dtype, device):
    parameters, optimizer = trained(dtype, device, SHAPES)
    optimizer.state.clear()
    assert_trains_as_adamw(optimizer, parameters)
    old = optimizer.state.pop(parameters[0])  # its memory stays in use
    before = copy.deepcopy(old)
    optimizer.state[parameters[2]]["exp_avg"] = torch.zeros_like(parameters[2], dtype=torch.float64)
    optimizer.step()
    expected = parameters[2].grad.float() * (1 - OPTIONS["betas"][0])
    torch.testing.assert_close(optimizer.state[parameters[2]]["exp_avg"], expected)
    assert optimizer.state[parameters[0]]["step"] == 1
    torch.testing.assert_close(old, before, rtol=0, atol=0)


def saved_for_reference(optimizer):
    """The state, as torch.optim.AdamW loads it."""
    state_dict = optimizer.state_dict()
    states = {n: {k: v.clone() for k, v in s.items() if k != "remainder"} for n, s in state_dict["state"].items()}
    groups = torch.optim.AdamW([torch.zeros(1)], **OPTIONS).state_dict()["param_groups"]
    return {"state": states, "param_groups": [{**groups[0], "params": state_dict["param_groups"][0]["params"]}]}


CHANGES = {
    "bf16": torch.Tensor.bfloat16,  # as by module.to(dtype)
    "fp32": torch.Tensor.float,
    "fp32 and back": lambda x: x.float().bfloat16(),
    "other layout": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "moved": lambda x: x.to("cpu" if x.is_cuda else "cuda"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_that_was_changed_trains_on(dtype, device, change):
    if change == "moved" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    parameters, optimizer = trained(dtype, device, SHAPES)
    masters = [master.clone() for master in optimizer.masters().values()]
    for parameter in parameters:
        parameter.data, parameter.grad = CHANGES[change](parameter.data), None
    if dtype is torch.bfloat16 and change in ("fp32 and back", "other layout"):
        assert all(map(torch.equal, masters, optimizer.masters().values()))
    assert_trains_as_adamw(optimizer, parameters, state=saved_for_reference(optimizer))


@pytest.mark.gpu
def test_a_graph_of_a_state_that_was_cleared_is_refused():
    parameters = make_parameters(device="cuda")
    optimizer = MasterAdamW(parameters, **OPTIONS)
    set_gradients(parameters, twins(parameters), 1)
    optimizer.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step(scale=0.5)
    optimizer.upload_hyperparameters()
    optimizer.state.clear()
    with pytest.raises(RuntimeError, match="moved since a CUDA graph was captured"):
        optimizer.upload_hyperparameters()
    optimizer.prepare()
    optimizer.upload_hyperparameters()


@pytest.mark.parametrize("copied", [copy.deepcopy, through_a_file])
def test_copies_train_on_their_own(copied, device):
    model = nn.Linear(5, 3).to(device, torch.bfloat16)
    optimizer = MasterAdamW(model.parameters(), **OPTIONS)
    train(optimizer, [*model.parameters()], range(1, 3))
    before = [*optimizer.masters().values()]
    other, its_optimizer = copied((model, optimizer))
    train(its_optimizer, [*other.parameters()], range(3, 6))
    assert all(map(torch.equal, before, optimizer.masters().values()))
    train(optimizer, [*model.parameters()], range(3, 6))
    assert all(map(torch.equal, optimizer.masters().values(), its_optimizer.masters().values()))


def sharded_by_one_rank() -> None:
    """DTensors are updated in the memory of their parts."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = DeviceMesh("cpu", [0])
    for dtype in (torch.bfloat16, torch.float32):
        whole = make_parameters(dtype, shapes=TWO)
        parameters = [nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in whole]
        optimizers = [MasterAdamW(members, **OPTIONS) for members in (whole, parameters)]
        for step in range(1, 3):
            set_gradients(whole, twins(whole), step)
            for parameter, p in zip(parameters, whole, strict=True):
                parameter.grad = distribute_tensor(p.grad, mesh, [Shard(0)])
            for optimizer in optimizers:
                optimizer.step()
        for expected, master in zip(*(o.masters().values() for o in optimizers), strict=True):
            assert torch.equal(master.full_tensor(), expected)
    dist.destroy_process_group()


def interpreted() -> None:
    """Run the kernel on the CPU: whole and partial chunks, misaligned and special values, both dtypes."""
    from cs336_systems.training import triton_adamw

    SHAPES[:] = [(5,), (7, 65), (3, 7, 11), (1,), (24,), ()]  # one chunk each: those of several follow
    for dtype in (torch.bfloat16, torch.float32):
        test_a_state_that_was_cleared_begins_anew(dtype, "cpu")
        for change in ("fp32" if dtype is torch.bfloat16 else "bf16", "other layout"):
            test_a_model_that_was_changed_trains_on(dtype, "cpu", change)
    for match in REFUSED_STEPS:
        test_a_step_that_is_refused_changes_nothing(match)
    test_copies_train_on_their_own(copy.deepcopy, "cpu")
    sharded_by_one_rank()
    triton_adamw.TUNING = triton_adamw.Tuning(block=32)
    for dtype in (torch.bfloat16, torch.float32):
        storage, short = torch.randn(100).to(dtype), [(1,)] * 28  # more tensors than one launch prepares
        parameters = make_parameters(dtype, shapes=[(5,), (8, 8), (3, 7), (32,), (), *short])
        parameters.append(nn.Parameter(storage[1:65]))
        references = twins(parameters)
        optimizer, reference = (
            kind([{"params": members[:3]}, {"params": members[3:], "weight_decay": 0.0}], **OPTIONS)
            for kind, members in ((MasterAdamW, parameters), (torch.optim.AdamW, references))
        )
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
