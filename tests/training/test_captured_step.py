"""CapturedStep against steps written out: eagerly on a CPU, as a CUDA graph on a GPU, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from cs336_systems.training import under_backward
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.captured_step import CapturedStep
from cs336_systems.training.clipping import clip_scale

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


class Net(nn.Module):
    """A network with a frozen and an unused parameter."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Dropout(dropout), nn.Linear(48, 8, bias=False))
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.layers(x * self.frozen).float(), y)


def make(device, dtype=torch.bfloat16, **options):
    torch.manual_seed(0)
    return Net(**options).to(device, dtype)


def batches(device, dtype=torch.bfloat16, count=6):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(12, 16, generator=generator).to(device, dtype)
        yield x, torch.randint(8, (12,), generator=generator).to(device)


def plain_step(model, optimizer, x, y, accumulate, max_norm):
    optimizer.zero_grad()
    own = isinstance(optimizer, MasterAdamW)
    total, sums = 0, {}
    for part in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
        loss = model.loss(*part) / accumulate
        loss.backward()
        total = total + loss.detach()
        for p in model.parameters() if own and accumulate > 1 else ():
            if p.grad is not None:
                sums[p] = sums.get(p, 0) + p.grad.float()
                p.grad = None
    if own:
        scale = clip_scale(model.parameters(), max_norm, gradients=sums) if max_norm else None
        optimizer.step(scale=scale, gradients=sums)
    else:
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return total


def own(parameters, device):
    return MasterAdamW(parameters, **OPTIONS)


def pytorch(parameters, device):
    lr = torch.tensor(OPTIONS["lr"], device=device)
    return torch.optim.AdamW(parameters, **{**OPTIONS, "lr": lr}, capturable=device == "cuda")


def set_lr(optimizer, lr):
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make_optimizer", "options"),
    [
        (own, {}),
        (own, {"accumulate": 3, "max_norm": 0.1}),
        (own, {"accumulate": 2}),
        (own, {"update_during_backward": True}),
        (pytorch, {"accumulate": 2, "max_norm": 0.1}),
    ],
)
def test_every_call_is_one_step(make_optimizer, options, device):
    plain, ours = make(device), make(device)
    optimizers = [make_optimizer(model.parameters(), device) for model in (plain, ours)]
    step = CapturedStep(ours.loss, optimizers[1], **options)
    losses = []
    for number, (x, y) in enumerate(batches(device)):
        for optimizer in optimizers:
            set_lr(optimizer, 1e-2 / (1 + number))
        expected = plain_step(plain, optimizers[0], x, y, options.get("accumulate", 1), options.get("max_norm"))
        losses.append((step(x, y), expected))
        assert (step.graph is not None) == (device == "cuda" and number >= 2)
        for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
            assert torch.equal(p, q), f"call {number}"
    for loss, expected in losses:
        assert torch.equal(loss, expected), "each loss is a tensor of its own"
        assert not loss.requires_grad
    for p, q in zip(plain.layers.parameters(), ours.layers.parameters(), strict=True):
        a, b = (optimizer.state[x]["exp_avg"] for optimizer, x in zip(optimizers, (p, q), strict=True))
        assert a.any()
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_a_state_loads_into_a_graph():
    model, other = make("cuda"), make("cuda")
    optimizers = [MasterAdamW(m.parameters(), **OPTIONS) for m in (model, other)]
    steps = [CapturedStep(m.loss, o) for m, o in zip((model, other), optimizers, strict=True)]
    data = list(batches("cuda", count=9))
    for batch in data[:4]:
        steps[0](*batch)
    for batch in data[4:8]:
        steps[1](*batch)
    other.load_state_dict(model.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for step in steps:
        step(*data[8])
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(optimizers[0].masters()[p], optimizers[1].masters()[q])


@pytest.mark.gpu
def test_dropout_draws_new_numbers_in_each_replay():
    model = make("cuda", dropout=0.5)
    step = CapturedStep(model.loss, MasterAdamW(model.parameters(), lr=0.0))
    x, y = next(batches("cuda"))
    losses = [step(x, y).item() for _ in range(8)]
    assert len(set(losses[3:])) > 1


@pytest.mark.gpu
def test_a_graph_frees_gradients_under_the_backward_pass(monkeypatch):
    monkeypatch.setattr(under_backward, "IN_FLIGHT", 64 * 2**20)

    def peak(**options):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(80)]).to("cuda", torch.bfloat16)
        step = CapturedStep(lambda x: model(x).square().mean(), MasterAdamW(model.parameters()), **options)
        x = torch.randn(16, 2048, dtype=torch.bfloat16, device="cuda")
        for _ in range(4):
            step(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        del step
        torch.cuda.empty_cache()
        return before

    weights = 80 * 2048 * 2048 * 2  # bytes
    assert peak() - peak(update_during_backward=True) > weights / 2


@pytest.mark.gpu
def test_what_a_graph_cannot_do_is_refused():
    model = make("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    step = CapturedStep(model.loss, optimizer)
    (x, y), *_ = batches("cuda")
    for _ in range(4):
        step(x, y)
    with pytest.raises(ValueError, match=r"argument 0 has shape \[6, 16\] .*; allowed: shape \[12, 16\]"):
        step(x[:6], y[:6])
    with pytest.raises(ValueError, match="the batch has 1 tensors; allowed: 2"):
        step(x)
    optimizer.param_groups[0]["lr"] = 1e-4
    with pytest.raises(ValueError, match="a hyperparameter was changed after the capture"):
        step(x, y)
    with pytest.raises(ValueError, match="SGD cannot be captured"):
        CapturedStep(model.loss, torch.optim.SGD(model.parameters()))
    fresh = MasterAdamW([nn.Parameter(torch.ones(3, device="cuda"))])
    fresh.param_groups[0]["params"][0].grad = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=r"call prepare\(\)"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fresh.step()


def test_mistakes_are_refused():
    model = make("cpu")
    optimizer = MasterAdamW(model.parameters())
    for options, match in (
        ({"accumulate": 0}, "accumulate is 0"),
        ({"max_norm": 0}, "max_norm is 0"),
        ({"update_during_backward": True, "max_norm": 1.0}, "excludes max_norm"),
        ({"update_during_backward": True, "accumulate": 2}, "excludes accumulate"),
    ):
        with pytest.raises(ValueError, match=match):
            CapturedStep(model.loss, optimizer, **options)
    with pytest.raises(ValueError, match="update_during_backward with SGD; allowed: MasterAdamW"):
        CapturedStep(model.loss, torch.optim.SGD(model.parameters()), update_during_backward=True)
    step = CapturedStep(model.loss, optimizer, accumulate=5)
    with pytest.raises(ValueError, match=r"argument 0 has shape \[12, 16\]; allowed: 5 equal parts of axis 0"):
        step(*next(batches("cpu")))
