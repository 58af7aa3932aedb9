"""Fully sharded data parallelism besides its numbers: what is in memory when, what it refuses and keeps alive."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.sharded_weight import ShardedWeight
from cs336_systems.parallel.timeline import Timeline
from tests.parallel.test_data_parallel_rules import assert_freed
from tests.parallel.test_fsdp import MODELS, OddModel
from tests.support.ranks import on_all_ranks
from tests.verify.training import backward, make_batches, own_parts, small_transformer, train

LAYERS = 5


def chain():
    return nn.Sequential(*(nn.Linear(size, size + 1) for size in range(3, 3 + LAYERS)))


def whole(fsdp):
    """Which weights are in memory whole, from their storages."""
    storages = [weight.whole.untyped_storage().nbytes() for weight in fsdp.sharded_weights.values()]
    return [index for index, size in enumerate(storages) if size]


@contextlib.contextmanager
def logged(fsdp):
    """The uses of units, with the weights whose gathering each of them starts, and the most that were whole at once."""
    log = SimpleNamespace(uses=[], most=0)
    note, prepare = Timeline.note, ShardedWeight.prepare_gather
    weights = list(fsdp.sharded_weights.values())

    def log_use(timeline, index):
        log.uses.append((index, []))
        note(timeline, index)

    def log_gather(weight):
        log.uses[-1][1].append(weights.index(weight))
        result = prepare(weight)
        log.most = max(log.most, len(whole(fsdp)))
        return result

    with mock.patch.object(Timeline, "note", log_use), mock.patch.object(ShardedWeight, "prepare_gather", log_gather):
        yield log


def step(fsdp, device, inputs=3):
    fsdp.zero_grad()
    fsdp(torch.randn(4, inputs, device=device)).sum().backward()
    fsdp.finish_gradient_synchronization()


@on_all_ranks
def test_weights_are_gathered_two_layers_ahead_and_freed_after_use(device):
    fsdp = FullyShardedDataParallel(chain().to(device))
    assert whole(fsdp) == []
    with logged(fsdp) as first:
        step(fsdp, device)
    # Nothing is known of the order: each is gathered when it is used.
    forward = list(range(LAYERS))
    assert first.uses == [(index, [index]) for index in (*forward, *reversed(forward))]
    assert first.most == 1
    for _ in range(2):
        with logged(fsdp) as later:
            step(fsdp, device)
        forward = [(0, [0, 1, 2]), (1, [3]), (2, [4]), (3, []), (4, [3])]
        assert later.uses == [*forward, (4, [2]), (3, [1]), (2, [0]), (1, []), (0, [])]
        assert later.most == 3
        assert whole(fsdp) == []


@pytest.mark.parametrize("name", ["checkpointed", "checkpointed, each block", "checkpointed, reentrant", "odd"])
@on_all_ranks
def test_few_weights_are_whole_at_once(device, name):
    fsdp = FullyShardedDataParallel(MODELS[name]().to(device))
    batches = own_parts(make_batches(3, device))
    with logged(fsdp) as log:
        train(fsdp, batches)
    # One is used, and computed again before its backward pass; two are ahead; a tied one is used twice.
    assert log.most <= 4
    assert whole(fsdp) == []


@on_all_ranks
def test_another_order_than_expected_costs_only_time(device):
    fsdp = FullyShardedDataParallel(small_transformer().to(device))
    [batch] = own_parts(make_batches(1, device))
    gradients = []
    for blocks in (3, 2, 3, 1):
        every = fsdp.module.blocks
        fsdp.module.blocks = every[:blocks]
        fsdp.zero_grad()
        backward(fsdp, batch)
        fsdp.finish_gradient_synchronization()
        fsdp.module.blocks = every
        gradients.append(fsdp.module.lm_head.weight.grad)
        assert whole(fsdp) == []
    assert torch.equal(gradients[0], gradients[2])
    assert not torch.equal(gradients[0], gradients[1])


@on_all_ranks
def test_a_look_at_the_model_between_forward_and_backward_changes_nothing(device):
    fsdp = FullyShardedDataParallel(OddModel().to(device))
    [batch] = own_parts(make_batches(1, device))
    results = []
    for look in (False, True, True):
        fsdp.zero_grad()
        loss = fsdp(batch).square().mean()
        if look:
            with torch.no_grad():
                assert torch.equal(fsdp(batch).square().mean(), loss)
        loss.backward()
        fsdp.finish_gradient_synchronization()
        results.append([parameter.grad for parameter in fsdp.parameters() if parameter.grad is not None])
    with torch.inference_mode():
        fsdp(batch)
    assert whole(fsdp) == []
    for gradients in zip(*results, strict=True):
        assert torch.equal(gradients[0], gradients[1])
        assert torch.equal(gradients[0], gradients[2])


@on_all_ranks
def test_an_exception_in_a_layer_leaves_shards(device):
    fsdp = FullyShardedDataParallel(chain().to(device))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fsdp(torch.randn(4, 99, device=device))
    assert whole(fsdp) == []
    assert all(layer.weight in fsdp.sharded_weights for layer in fsdp.module)
    step(fsdp, device)


@on_all_ranks
def test_misuse_is_refused(device):
    fsdp = FullyShardedDataParallel(chain().to(device))
    x = torch.randn(4, 3, device=device)
    fsdp(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"^finish_gradient_synchronization\(\) was not called after the last"):
        fsdp(x)
    with pytest.raises(RuntimeError, match=r"^no_sync\(\) begins between"), fsdp.no_sync():
        pass
    fsdp.finish_gradient_synchronization()
    changed = "^a parameter was changed between the forward pass and the backward pass"
    for foreach in (False, True):
        loss = fsdp(x).sum()
        torch.optim.SGD(fsdp.parameters(), lr=0.1, foreach=foreach).step()
        with pytest.raises(RuntimeError, match=changed):
            loss.backward()
    fsdp.zero_grad()
    fsdp.module.append(nn.Linear(3 + LAYERS, 2).to(device))
    with pytest.raises(RuntimeError, match=rf"^{LAYERS}\.weight was added or replaced after wrapping; allowed: in-pl"):
        fsdp(x)
    module = fsdp.module
    del fsdp
    with pytest.raises(RuntimeError, match=r"^the FullyShardedDataParallel that gathers .* was deleted"):
        module(x)
    with pytest.raises(ValueError, match=r"^compute_dtype is 'bf16'; allowed: floating-point dtypes, and None$"):
        FullyShardedDataParallel(chain().to(device), "bf16")
    with pytest.raises(ValueError, match=r"^the ranks' models differ"):
        FullyShardedDataParallel(nn.Linear(3, 3 + dist.get_rank()).to(device))


@pytest.mark.parametrize("name", ["odd", "checkpointed"])
@on_all_ranks
def test_a_dropped_model_is_freed_without_the_garbage_collector(device, name):
    def make():
        fsdp = FullyShardedDataParallel(MODELS[name]().to(device), compute_dtype=torch.bfloat16)
        train(fsdp, own_parts(make_batches(2, device)))
        fsdp.module.state_dict()
        return [fsdp, *(weight.whole for weight in fsdp.sharded_weights.values())]

    assert_freed(make)


@pytest.mark.parametrize("part", [None, 2])
@on_all_ranks
def test_a_compiled_wrapper_breaks_its_graph_where_it_communicates(device, part):
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).to(device)
    if part is not None:
        module[part].compile(backend="aot_eager")
    fsdp = FullyShardedDataParallel(module)
    compiled = torch.compile(fsdp, backend="aot_eager")
    x = torch.randn(4, 3, device=device)
    with torch.no_grad():
        expected = fsdp(x)
    for _ in range(2):
        fsdp.zero_grad()
        output = compiled(x)
        assert torch.equal(output, expected)
        output.sum().backward()
        fsdp.finish_gradient_synchronization()
    assert all(parameter.grad is not None for parameter in fsdp.parameters())
