"""The sharded optimizer, to the bit: the weights and the state of the optimizer that it shards."""

import contextlib
import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.sharded_buckets import ShardedBucket
from cs336_systems.parallel.sharded_gradients import OwnedGradients, ShardedGradientsDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.training import MasterAdamW
from tests.parallel.test_data_parallel import ALL, Branches
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import SHARDED_OPTIMIZERS
from tests.verify.training import CONTEXT, VOCABULARY, small_transformer, take_step

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),  # makes its state when it is made itself
}


class Counting(torch.optim.SGD):
    """Its groups count steps, and the learning rate depends on them."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


def groups_of(module):
    """Parameters in groups of their own hyperparameters; `late` is left out."""
    named = {name: p for name, p in module.named_parameters() if not name.startswith("late")}
    matrices = [p for p in named.values() if p.ndim > 1]
    vectors = [p for p in named.values() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.02}]


def optimizers_of(modules, kind, optimizer, **options):
    """A sharded optimizer of the first module, and the one that it shards of the second."""
    optimizer_cls, kwargs = OPTIMIZERS[optimizer]
    ours, theirs = map(groups_of, modules)
    return kind(ours, optimizer_cls, **options, **kwargs), optimizer_cls(theirs, **kwargs)


def make(device):
    """The same module on all ranks, twice."""
    torch.manual_seed(0)
    module = Branches().to(device)
    module.late = nn.Linear(5, 7).to(device)
    torch.manual_seed(1 + dist.get_rank())
    return module, copy.deepcopy(module)


def loss_of(wrapped, step, names, late=False):
    """A loss on this rank's own examples."""
    torch.manual_seed(100 * step + dist.get_rank())
    x = torch.randn(5, 5, device=wrapped.module.scale.device)
    loss = wrapped(x, names)
    return loss + wrapped.module.late(x).square().mean() if late else loss


def assert_same_weights(ours, theirs):
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other), name


@pytest.mark.numeric
@pytest.mark.parametrize(("optimizer", "bucket_size_mb"), [("SGD", 100), ("AdamW", 0.0004), ("AdamW, fused", 0.0004)])
@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_ten_steps_with_all_that_optimizers_allow(device, optimizer, bucket_size_mb, kind):
    modules = make(device)
    optimizers = optimizers_of(modules, kind, optimizer, bucket_size_mb=bucket_size_mb)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, step_size=2, gamma=0.5) for each in optimizers]
    for module in modules:
        module.late.requires_grad_(False)
    for step in range(10):
        for module, each, scheduler in zip(modules, optimizers, schedulers, strict=True):
            if step == 3:
                each.add_param_group({"params": module.late.parameters(), "lr": 0.3})  # frozen as yet
            if step == 5:
                module.late.requires_grad_(True)
            if step == 7:
                module.bf16.requires_grad_(False)
            wrapped = BucketedDataParallel(module, bucket_size_mb=1)
            each.zero_grad(set_to_none=step != 8)
            names = ALL[1:] if step == 1 else (*ALL, "tied")
            loss_of(wrapped, step, names, late=step >= 5).backward()
            wrapped.finish_gradient_synchronization()
            if step == 2:
                module.frozen.weight.grad = torch.ones_like(module.frozen.weight)  # optimizers update what has one
            nn.utils.clip_grad_norm_(module.parameters(), max_norm=0.5)
            each.step()
            scheduler.step()
        assert_same_weights(*modules)


@pytest.mark.numeric
@pytest.mark.parametrize(("optimizer", "bucket_size_mb"), [*((each, 0.0004) for each in OPTIMIZERS), ("AdamW", 100)])
@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_sharded_gradients_train_like_whole_ones(device, optimizer, bucket_size_mb, kind):
    modules = make(device)
    for module in modules:
        module.late.requires_grad_(False)
    optimizers = optimizers_of(modules, kind, optimizer, bucket_size_mb=bucket_size_mb)
    wrappers = [ShardedGradientsDataParallel(modules[0], optimizers[0]), BucketedDataParallel(modules[1], 1)]
    for step in range(5):
        for wrapped, each in zip(wrappers, optimizers, strict=True):
            each.zero_grad()
            if step == 3:
                with wrapped.no_sync():
                    loss_of(wrapped, step, ALL).backward()
            names = (ALL, ALL[1:], ("small", "tied"))[(step + dist.get_rank()) % 3] if step else ALL
            loss_of(wrapped, step, names).backward()
            wrapped.finish_gradient_synchronization()
        for (name, mine), whole in zip(modules[0].named_parameters(), modules[1].parameters(), strict=True):
            kept = torch.tensor(mine.grad is not None, dtype=torch.int64, device=device)
            dist.all_reduce(kept)
            assert kept == (whole.grad is not None), name  # by one rank, or by none if none has a gradient
            assert mine.grad is None or torch.equal(mine.grad, whole.grad), name
        for each in optimizers:
            each.step()
        assert_same_weights(*modules)


OTHERS = {
    **{name: (getattr(torch.optim, name), {}) for name in ("Adadelta", "Adafactor", "NAdam", "RAdam", "Rprop")},
    "Adafactor, foreach": (torch.optim.Adafactor, {"foreach": True}),
    "AdamW, foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW, one by one": (torch.optim.AdamW, {"foreach": False}),
    "Muon": (torch.optim.Muon, {}),  # of matrices alone
}


@pytest.mark.numeric
@pytest.mark.parametrize("optimizer", OTHERS)
@on_all_ranks
def test_whole_parameters_suit_every_optimizer(device, optimizer):
    torch.manual_seed(0)
    modules = [nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))).to(device) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    optimizer_cls, kwargs = OTHERS[optimizer]
    sharded = ShardedOptimizer(modules[0].parameters(), optimizer_cls, bucket_size_mb=0.0001, **kwargs)
    whole = optimizer_cls(modules[1].parameters(), **kwargs)
    wrappers = [ShardedGradientsDataParallel(modules[0], sharded), BucketedDataParallel(modules[1], 1)]
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        x = torch.randn(4, 8, device=device)
        for wrapped, each in zip(wrappers, (sharded, whole), strict=True):
            take_step(wrapped, each, x)
        assert_same_weights(*modules)


@pytest.mark.numeric
@on_all_ranks
def test_clipping_of_sharded_gradients(device):
    models = [small_transformer().to(device) for _ in range(2)]
    optimizer = ShardedOptimizer(models[0].parameters(), torch.optim.SGD, lr=0.1, bucket_size_mb=0.001)
    ours = ShardedGradientsDataParallel(models[0], optimizer)
    models[1].load_state_dict(models[0].state_dict())
    theirs = BucketedDataParallel(models[1], bucket_size_mb=1)
    tokens = torch.randint(VOCABULARY, (2, CONTEXT), device=device)
    for norm_type, max_norm in ((2.0, 0.01), (float("inf"), 1e-4), (2.0, 1e3)):
        for wrapped in (ours, theirs):
            wrapped.zero_grad()
            wrapped(tokens).square().mean().backward()
            wrapped.finish_gradient_synchronization()
        norm = ours.clip_grad_norm_(max_norm, norm_type)
        assert norm == nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type) > 1e-4
        for mine, whole in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert mine.grad is None or torch.equal(mine.grad, whole.grad)


@on_all_ranks
def test_clipping_of_parameters_of_several_dtypes(device):
    module = nn.ParameterList(torch.ones(3, dtype=t, device=device) for t in (torch.complex64, torch.float32) * 2)
    wrapped = ShardedGradientsDataParallel(module, ShardedOptimizer(module.parameters(), torch.optim.SGD))
    sum((parameter * parameter.conj()).real.sum() for parameter in module).backward()
    wrapped.finish_gradient_synchronization()
    assert wrapped.clip_grad_norm_(1.0).item() == pytest.approx(48**0.5)


def train_alone(module, optimizer, steps):
    """Steps on gradients that are the same on all ranks."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            if parameter.requires_grad:
                values = torch.randn(parameter.shape, generator=generator)
                parameter.grad = torch.empty_like(parameter).copy_(values)
        optimizer.step()


@pytest.mark.numeric
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_state_moves_to_one_process_and_back(device, optimizer, kind):
    """The unsharded optimizer is what one process has."""
    ours, alone = modules = make(device)
    sharded, single = optimizers_of(modules, kind, optimizer)
    optimizer_cls, _ = OPTIMIZERS[optimizer]
    for module, each in ((ours, sharded), (alone, single)):
        train_alone(module, each, range(2))
    theirs = single.state_dict()
    trainable = [i for i, p in enumerate(p for group in groups_of(alone) for p in group["params"]) if p.requires_grad]
    saved, saved_by_1 = sharded.state_dict(), sharded.consolidate_state_dict(to=1)
    assert (saved_by_1 is None) == (dist.get_rank() == 0)
    for ours_as_saved in (saved, saved_by_1 or saved):
        assert ours_as_saved["param_groups"] == theirs["param_groups"]
        expected = {number: state for number, state in theirs["state"].items() if number in trainable}
        expected = tree_map_only(torch.Tensor, torch.Tensor.cpu, expected)
        torch.testing.assert_close(ours_as_saved["state"], expected, rtol=0, atol=0)

    frozen = copy.deepcopy(ours).requires_grad_(False)
    keeping = kind(groups_of(frozen), optimizer_cls, lr=1)
    keeping.load_state_dict(saved)
    assert keeping.state_dict()["state"].keys() == saved["state"].keys()

    onto_one = optimizer_cls(groups_of(alone), lr=1)
    onto_one.load_state_dict(copy.deepcopy(saved))
    train_alone(alone, onto_one, range(2, 4))
    module = copy.deepcopy(ours)
    onto_two = kind(groups_of(module), optimizer_cls, bucket_size_mb=0.0004, lr=1)
    onto_two.load_state_dict(saved)
    train_alone(module, onto_two, range(2, 4))
    assert_same_weights(module, alone)
    back = kind(groups_of(module), optimizer_cls, lr=1)
    back.load_state_dict(copy.deepcopy(onto_one.state_dict()))
    for module_, each in ((module, back), (alone, onto_one)):
        train_alone(module_, each, range(4, 6))
    assert_same_weights(module, alone)


@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_closures_keyword_arguments_counts_and_ranks_with_nothing_to_do(device, kind):
    parameter = nn.Parameter(torch.ones(3, 5, device=device))
    alone = nn.Parameter(torch.ones(3, 5, device=device))
    optimizers = [kind([parameter], Counting, momentum=0.9), Counting([alone], momentum=0.9)]
    for _ in range(3):
        losses = []
        for weight, each in zip((parameter, alone), optimizers, strict=True):

            def closure(weight=weight, each=each):
                each.zero_grad()
                loss = weight.square().sum()
                loss.backward()
                return loss

            losses.append(each.step(closure))
        assert losses[0] == losses[1] > 0
        assert torch.equal(parameter, alone)
    assert [each.param_groups[0]["count"] for each in optimizers] == [3, 3]
    assert [each.param_groups[0]["lr"] for each in optimizers] == [0.1 / 3] * 2
    assert len(optimizers[0].state) == (dist.get_rank() == 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
        optimizers[0].step(unknown=1)


def noting(events, start):
    """A method that notes its name, and when its result is waited for."""

    def call(self):
        events.append(start.__name__)
        work = start(self)
        return mock.Mock(wait=lambda: (events.append("wait"), work.wait()))

    return call


@pytest.mark.parametrize(
    ("members", "expected"),
    [(32, ["update", "share"] * 2 + ["wait"] * 2), (2, ["update", *["share"] * 4] * 8 + ["wait"] * 32)],
)
@on_all_ranks
def test_few_parts_of_which_one_travels_while_the_next_is_updated(device, members, expected):
    class Recorded(torch.optim.SGD):
        def step(self, closure=None):
            events.append("update")
            super().step(closure)

    events = []
    parameters = [nn.Parameter(torch.ones(64, device=device)) for _ in range(64)]
    optimizer = ShardedOptimizer(parameters, Recorded, bucket_size_mb=members * 256 / 1e6)
    with mock.patch.object(ShardedBucket, "share", noting(events, ShardedBucket.share)):
        optimizer.step()
    assert events == expected


@on_all_ranks
def test_two_buckets_of_gradients_travel_at_a_time(device):
    events = []
    module = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(8))).to(device)
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.SGD, bucket_size_mb=2 * 256 / 1e6)
    wrapped = ShardedGradientsDataParallel(module, optimizer)
    with mock.patch.object(OwnedGradients, "reduce", noting(events, OwnedGradients.reduce)):
        wrapped(torch.ones(2, 8, device=device)).sum().backward()
    assert events == ["reduce"] * 2 + ["wait", "reduce"] * 2
    wrapped.finish_gradient_synchronization()


@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_parameters_that_get_other_data_are_taken_in_again(device, kind):
    parameter = nn.Parameter(torch.zeros(4, device=device))
    optimizer = kind([parameter, nn.Parameter(torch.zeros(4, device=device))], torch.optim.SGD, lr=1)
    parameter.data = torch.full((4,), 5.0, device=device)
    parameter.grad = torch.ones(4, device=device)
    optimizer.step()
    assert parameter.tolist() == [4.0] * 4
    parameter.grad = None
    parameter.data = parameter.data.double()
    with pytest.raises(RuntimeError, match=r"float32 on .* is torch\.float64 on .* create the optimizer after"):
        optimizer.step()


@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_autograd_notices_that_parameters_of_other_ranks_have_changed(device, kind):
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)).to(device)
    optimizer = kind([model[1].weight], torch.optim.SGD, lr=1)
    loss = model(torch.ones(2, 5, device=device)).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@on_all_ranks
def test_masters_of_bf16_weights_are_saved_and_loaded(device):
    def make(shard):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7)).to(device, torch.bfloat16)
        groups = [{"params": [*model[0].parameters()]}, {"params": [*model[1].parameters()], "weight_decay": 0.1}]
        return model, ShardedOptimizer(groups, MasterAdamW, lr=0.1) if shard else MasterAdamW(groups, lr=1.0)

    def train(model, optimizer, steps):
        for step in steps:
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step)).to(device, torch.bfloat16)
            take_step(model, optimizer, x)

    model, optimizer = make(shard=True)
    train(model, optimizer, range(3))
    weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
    train(model, optimizer, range(3, 6))
    for shard in (True, False):
        resumed, its_optimizer = make(shard)
        resumed.load_state_dict(weights)
        its_optimizer.load_state_dict(copy.deepcopy(state))
        train(resumed, its_optimizer, range(3, 6))
        assert all(map(torch.equal, resumed.parameters(), model.parameters()))


@on_all_ranks
def test_what_cannot_be_done_is_refused(device):
    module = nn.Linear(5, 3).to(device)
    with pytest.raises(ValueError, match=r"^bucket_size_mb is 0; allowed: numbers above 0$"):
        ShardedOptimizer(module.parameters(), torch.optim.SGD, bucket_size_mb=0)
    own = ShardedOptimizer([nn.Parameter(torch.ones(4, device=device))], MasterAdamW)
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters; allowed: \[1\]"):
        own.load_state_dict(ShardedOptimizer(module.parameters(), MasterAdamW).state_dict())
    for kind, state, match in (
        (
            torch.optim.SGD,
            {"momentum_buffer": torch.ones(9)},
            r"^momentum_buffer is of shape \[9\]; allowed: its param",
        ),
        (
            torch.optim.AdamW,
            {"momentum": 0.9},
            "^a state or group has no step; allowed: states and groups of Ada",
        ),
        (MasterAdamW, {"step": 1.0, "exp_avg": torch.ones(9)}, "^a state has no exp_avg_sq; allowed"),
    ):
        optimizer = ShardedOptimizer(module.parameters(), kind, lr=0.1)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        before = optimizer.state_dict()
        changed = copy.deepcopy(before)
        changed["param_groups"][0]["lr"] = 9.0
        changed["state"] = (
            dict.fromkeys(range(2), state) if kind is torch.optim.AdamW else {**before["state"], 1: state}
        )
        with pytest.raises(ValueError, match=match):
            optimizer.load_state_dict(changed)
        torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^optimizer_cls is LBFGS; allowed: optimizers that update each"):
        ShardedOptimizer(module.parameters(), torch.optim.LBFGS)
    with pytest.raises(ValueError, match=r"parameter 0: float32 \[4\].*allowed: the same"):
        ShardedOptimizer([nn.Parameter(torch.zeros(3 + dist.get_rank(), device=device))], torch.optim.SGD)
    with pytest.raises(ValueError, match=r"^the optimizer does not have weight; allowed: all parameters of the module"):
        ShardedGradientsDataParallel(module, ShardedOptimizer([module.bias], torch.optim.SGD))
    extra = nn.Parameter(torch.zeros(1, device=device))
    with pytest.raises(ValueError, match=r"^the optimizer has parameters that are not the module's; allowed"):
        ShardedGradientsDataParallel(module, ShardedOptimizer([*module.parameters(), extra], torch.optim.SGD))

    wrapped = ShardedGradientsDataParallel(module, ShardedOptimizer(module.parameters(), torch.optim.SGD))
    x = torch.ones(2, 5, device=device)
    wrapped(x).sum().backward()
    wrapped.finish_gradient_synchronization()
    refused = pytest.raises(RuntimeError, match=r"call zero_grad\(set_to_none")
    with contextlib.suppress(RuntimeError) if dist.get_rank() else refused:
        wrapped(x).sum().backward()
        wrapped.finish_gradient_synchronization()


@on_all_ranks
def test_parameters_that_the_wrapper_does_not_know_are_refused(device):
    module = nn.Linear(5, 3).to(device)
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.SGD)
    wrapped = ShardedGradientsDataParallel(module, optimizer)
    optimizer.add_param_group({"params": nn.Parameter(torch.zeros(1, device=device))})
    wrapped(torch.ones(2, 5, device=device)).sum().backward()
    with pytest.raises(RuntimeError, match="wrap the module again"):
        wrapped.finish_gradient_synchronization()
