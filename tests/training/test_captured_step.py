"""CapturedStep against steps written out: eagerly on a CPU, as a CUDA graph on a GPU, bit for bit."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cs336_systems.parallel import FullyShardedDataParallel, ShardedOptimizer
from cs336_systems.parallel.update_in_backward import UpdateOfOneRank
from cs336_systems.training import under_backward
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.captured_step import CapturedStep
from cs336_systems.training.clipping import clip_scale
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import WRAPPERS, by, same_on_all_ranks, sharded_by
from tests.verify.training import whole

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
    with pytest.raises(TypeError, match=r"optimizer is a UpdateOfOneRank; allowed: torch\.optim\.Optimizer"):
        CapturedStep(model.loss, UpdateOfOneRank([[*make("cpu").layers.parameters()]], MasterAdamW))
    with pytest.raises(ValueError, match=r"^LBFGS computes losses in its step; allowed: optimizers whose"):
        CapturedStep(model.loss, torch.optim.LBFGS(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = copy.deepcopy(model.state_dict())
    x, y = next(batches("cpu"))
    for batch, match in (
        (
            (x[:10], y[:10]),
            r"shapes are \[10, 16\] and \[10\]; allowed: one nonzero length of axis 0, divisible by accumulate=4",
        ),
        ((x[:2], y[:2]), "divisible by accumulate=4"),
        ((x[:0], y[:0]), "divisible by accumulate=4"),
        ((x, y[:8]), "one nonzero length of axis 0"),
        ((x, y[0]), "one nonzero length of axis 0"),
        ((), "shapes are none"),
    ):
        with pytest.raises(ValueError, match=match):
            CapturedStep(model.loss, optimizer, accumulate=4)(*batch)
    for value in (None, 3, {"x": x}):
        with pytest.raises(TypeError, match=f"argument 1 is a {type(value).__name__}; allowed: tensors"):
            CapturedStep(model.loss, optimizer)(x, value)
    for returned, error, match in (
        (lambda x, y: model.layers(x), ValueError, r"the loss has shape \[12, 8\]; allowed: a scalar"),
        (lambda x, y: model.loss(x, y).item(), TypeError, "returned a float; allowed"),
        (lambda x, y: (model.loss(x, y), y), ValueError, r"the loss has shape \[12\]"),
    ):
        with pytest.raises(error, match=match):
            CapturedStep(returned, optimizer)(x, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_inputs_of_any_number_of_dimensions(device):
    weight = nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5, device=device))
    if device == "cuda":
        optimizer = MasterAdamW([weight])
    none = CapturedStep(lambda: weight.sum(), optimizer)
    one = CapturedStep(lambda factor: factor * weight.sum(), optimizer)
    for _ in range(4):
        before = weight.sum().item()
        assert none().item() == before
        assert weight.sum().item() < before
        before = weight.sum().item()
        assert one(torch.tensor(2.0, device=device)).item() == pytest.approx(2 * before)


def token_losses():
    """Losses that ignore tokens, from logits and targets."""

    def weighted(z, y):
        return nn.functional.cross_entropy(z, y, weight=torch.linspace(0.5, 2, 50))

    def own(z, y):
        of_tokens = nn.functional.cross_entropy(z, y, reduction="none")
        return of_tokens.sum(), (y != -100).sum()

    return {
        "linear": None,
        "PyTorch's": nn.functional.cross_entropy,
        "in two dimensions": lambda z, y: nn.functional.cross_entropy(z.T[None], y[None]),
        "smoothed, scaled": lambda z, y: 0.3 * nn.functional.cross_entropy(z, y, label_smoothing=0.1),
        "with class weights": weighted,
        "sum and count": own,
        "selected": lambda z, y: nn.functional.cross_entropy(z[y != -100], y[y != -100]),
    }


@pytest.mark.numeric
@pytest.mark.parametrize("name", token_losses())
def test_a_step_does_not_depend_on_how_a_batch_is_split(name):
    torch.manual_seed(0)
    embedding, head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
    parameters = [embedding.weight, head.weight]
    begin = [p.detach().clone() for p in parameters]
    x, y = torch.randint(0, 50, (8, 6)), torch.randint(0, 50, (8, 6))
    y[0, 2:] = y[1, 1:] = y[4:6] = -100

    def loss(x, y):
        hidden = embedding(x)
        if name == "linear":
            return linear_cross_entropy(hidden, head.weight, y)
        return token_losses()[name](head(hidden).flatten(0, 1), y.flatten())

    for max_norm in (None, 0.01):
        ends = []
        for accumulate in (1, 2, 4):
            with torch.no_grad():
                torch._foreach_copy_(parameters, begin)
            step = CapturedStep(loss, torch.optim.SGD(parameters, lr=1.0), accumulate=accumulate, max_norm=max_norm)
            ends.append((step(x, y), *(p.detach() - b for p, b in zip(parameters, begin, strict=True))))
        assert ends[0][1].any()
        for end in ends[1:]:
            torch.testing.assert_close(end, ends[0], rtol=1e-4, atol=1e-6)


def test_ambiguous_means_over_tokens_are_refused():
    model = make("cpu", torch.float32)
    before = copy.deepcopy(model.state_dict())

    def two(x, y):
        return model.loss(x, y) + model.loss(x.flip(0), y)

    x, y = next(batches("cpu", torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    compiled = torch.compile(model.loss, backend="aot_eager")

    def checkpointed(x, y):
        return checkpoint(model.loss, x.clone().requires_grad_(), y, use_reentrant=True)

    for loss, match in (
        (two, "2 means over tokens"),
        (compiled, "computed by compiled code"),
        (checkpointed, "computed by CheckpointFunction"),
    ):
        with pytest.raises(ValueError, match=rf"the loss .*{match}.*\(loss, 1\)"):
            CapturedStep(loss, optimizer, accumulate=2)(x, y)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for loss in (two, compiled, checkpointed):
        CapturedStep(lambda x, y, loss=loss: (loss(x, y), 1), optimizer, accumulate=2)(x, y)
        CapturedStep(loss, optimizer)(x, y)
    layers = torch.compile(model.layers, backend="aot_eager")
    CapturedStep(lambda x, y: nn.functional.cross_entropy(layers(x), y), optimizer, accumulate=2)(x, y)


@pytest.mark.parametrize("make_optimizer", [own, pytorch])
def test_numbers_that_are_not_finite_are_named_before_the_update(make_optimizer):
    model = make("cpu")
    optimizer = make_optimizer(model.parameters(), "cpu")
    factor, slope = 1.0, 0.0

    def loss(x, y):
        bias = model.layers[0].bias[0]
        return factor * model.loss(x, y) + slope * (bias - bias.detach())

    step = CapturedStep(loss, optimizer, check_finite=True)
    (x, y), *_ = batches("cpu")
    step(x, y)
    before = copy.deepcopy(model.state_dict())
    factor = torch.inf
    with pytest.raises(RuntimeError, match="the loss is not finite"):
        step(x, y)
    factor, slope = 1.0, 3e38
    with pytest.raises(RuntimeError, match="the norm of the gradients is not finite"):
        step(x, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Tokens(nn.Module):
    """A language model with tied weights, a frozen and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 8)
        self.layers = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
        self.norm = nn.LayerNorm(8)
        self.norm.bias.requires_grad_(False)
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.embedding(tokens)))).flatten(0, 1)


WRAPPED = {
    **{name: by(wrap) for name, wrap in WRAPPERS.items()},
    "DistributedDataParallel": by(DistributedDataParallel),
    "fully sharded": by(FullyShardedDataParallel),
    "fully_shard": by(lambda model: [fully_shard(m) for m in (model.layers, model)][1]),
    "sharded optimizer": sharded_by(ShardedOptimizer),
    "sharded gradients": sharded_by(ShardedOptimizer, sharded_gradients=True),
}


@pytest.mark.numeric
@pytest.mark.parametrize("wrapper", WRAPPED)
@on_all_ranks
def test_a_wrapped_model_trains_as_one_process_on_the_whole_batch(device, wrapper):
    """Ranks have different numbers of tokens, and ignore different numbers of them, as do micro-batches."""
    if device.type == "cuda":  # DistributedDataParallel needs another stream than the default one
        torch.cuda.set_stream(torch.cuda.Stream())
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(17, (3, 12, 5), generator=generator).to(device) for _ in range(2))
    targets[:, 0, 1:] = targets[:, 2:4] = targets[:, 7] = -100
    on_gpu = device.type == "cuda"
    optimizers = [partial(torch.optim.AdamW, lr=0.01, eps=0.01, capturable=on_gpu)]
    if not (on_gpu and wrapper.startswith("sharded")):  # whose MasterAdamW cannot be captured
        optimizers.append(partial(MasterAdamW, lr=0.01, eps=0.01))
    for make_optimizer in optimizers:
        for accumulate, max_norm in ((1, 0.1), (3, None), (3, 0.1)):
            torch.manual_seed(0)
            alone = Tokens().to(device)
            model, optimizer = WRAPPED[wrapper](copy.deepcopy(alone), make_optimizer)
            plain = make_optimizer(alone.parameters())
            step = CapturedStep(
                lambda x, y, model=model: nn.functional.cross_entropy(model(x), y.flatten()),
                optimizer,
                model=model,
                accumulate=accumulate,
                max_norm=max_norm,
                check_finite=True,
            )
            mine = slice(9, 12) if dist.get_rank() else slice(9)
            for x, y in [*zip(tokens, targets, strict=True)] * (4 if on_gpu else 1):
                loss = step(x[mine], y[mine])
                plain.zero_grad()
                nn.functional.cross_entropy(alone(x), y.flatten()).backward()
                if max_norm:
                    nn.utils.clip_grad_norm_(alone.parameters(), max_norm)
                plain.step()
                assert not loss.requires_grad
            assert (step.graph is not None) == on_gpu
            parameters = [whole(p.detach()) for p in model.parameters()]
            assert same_on_all_ranks(parameters)
            torch.testing.assert_close(parameters, [p.detach() for p in alone.parameters()], rtol=1e-4, atol=1e-5)


@on_all_ranks
def test_sums_of_16_bit_gradients_are_averaged_over_ranks(device):
    """The first micro-batches' large gradients cancel: in bf16 they would swallow all others."""
    if device.type == "cuda":  # as above
        torch.cuda.set_stream(torch.cuda.Stream())
    options = {"lr": 0.1, "betas": (0.0, 0.0), "eps": 1.0, "weight_decay": 0}
    x = torch.ones(32, 4, dtype=torch.bfloat16, device=device)
    x[0], x[2:] = 256, 1 + dist.get_rank()
    x[1] = -256
    for wrap in (*WRAPPERS.values(), DistributedDataParallel, FullyShardedDataParallel, fully_shard):
        model = wrap(nn.Linear(4, 4, bias=False).to(device, torch.bfloat16))
        (weight,) = model.parameters()
        optimizer = MasterAdamW([weight], **options)
        before = whole(optimizer.masters()[weight]).clone()
        step = CapturedStep(lambda x, model=model: 32 * model(x).sum(), optimizer, model=model, accumulate=32)
        step(x)
        gradient = 30 * 1.5  # the mean over ranks
        expected = before - 0.1 * gradient / (gradient + 1)
        after = whole(optimizer.masters()[weight])
        torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-3)
        assert same_on_all_ranks([after])


@on_all_ranks
def test_gradients_that_another_wrapper_averages_are_refused(device):
    x = torch.ones(4, 4, device=device)

    def loss(x):
        raise AssertionError("nothing is computed")

    for wrapper in (DistributedDataParallel, FullyShardedDataParallel, WRAPPERS["naive"]):
        plain = nn.Linear(4, 4).to(device)
        before = MasterAdamW(plain.parameters())
        step = CapturedStep(loss, before)
        wrapped = wrapper(plain)
        optimizer = MasterAdamW(wrapped.parameters())
        if wrapper is not FullyShardedDataParallel:  # whose parameters are others
            with pytest.raises(ValueError, match=f"{wrapper.__name__} averages the gradients"):
                step(x)
        with pytest.raises(ValueError, match=f"{wrapper.__name__} averages the gradients; allowed: .*model="):
            CapturedStep(loss, optimizer)
        with pytest.raises(ValueError, match="update_during_backward excludes model"):
            CapturedStep(loss, optimizer, model=wrapped, update_during_backward=True)
        foreign = MasterAdamW([*wrapped.parameters(), nn.Parameter(torch.ones(3, device=device))])
        with pytest.raises(ValueError, match=r"a parameter of shape \[3\] whose gradient model, a .* does not average"):
            CapturedStep(loss, foreign, model=wrapped)
    wrapped = DistributedDataParallel(nn.Linear(4, 4).to(device))
    optimizer = MasterAdamW(wrapped.parameters())
    if device.type == "cuda":
        with pytest.raises(ValueError, match="the default stream cannot be captured"):
            CapturedStep(loss, optimizer, model=wrapped)
        torch.cuda.set_stream(torch.cuda.Stream())
    with pytest.raises(ValueError, match="the loss function did not call model, a DistributedDataParallel"):
        CapturedStep(lambda x: wrapped.module(x).sum(), optimizer, model=wrapped)(x)
    model = nn.Sequential(nn.Linear(4, 4), fully_shard(nn.Linear(4, 4).to(device)))
    for module in (model, plain):
        with pytest.raises(TypeError, match=r"model is a [SL].*; allowed: a data-parallel wrapper"):
            CapturedStep(loss, optimizer, model=module)
    with pytest.raises(ValueError, match="a ShardedOptimizer needs averaged gradients"):
        CapturedStep(loss, ShardedOptimizer(nn.Linear(4, 4).to(device).parameters(), torch.optim.SGD))


@on_all_ranks
def test_all_ranks_raise_where_one_has_a_loss_that_is_not_finite(device):
    if device.type == "cuda":
        return  # an assertion on a device ends the process
    wrapped = DistributedDataParallel(nn.Linear(4, 4))
    step = CapturedStep(
        lambda x: wrapped(x).sum(), torch.optim.SGD(wrapped.parameters()), model=wrapped, check_finite=True
    )
    with pytest.raises(RuntimeError, match="the loss is not finite"):
        step(torch.full((2, 4), torch.inf if dist.get_rank() else 1.0))
