"""Memory that ranks share: who may write where, and that all of it is given back."""

import gc
import itertools
import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.parallel.symmetric_memory_data_parallel import Layout, SymmetricMemoryDataParallel, assign_owners
from cs336_systems.parallel.symmetric_memory_optimizer import SymmetricMemoryShardedOptimizer
from tests.support.ranks import on_all_ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_no_two_slots_of_a_rank_overlap_and_all_lie_in_its_memory(ranks):
    sizes = [4, 1000, 0, 257, 256, 12_345, 8, 8]
    layout = Layout(sizes, ranks)
    for holder in range(ranks):
        slots = [
            layout.slot(message, holder, sender)
            for message, owner in enumerate(layout.owners)
            for sender in range(ranks)
            if sender != holder and owner in (holder, sender)
        ]
        expected = sum(
            size * (ranks - 1 if owner == holder else 1) for size, owner in zip(sizes, layout.owners, strict=True)
        )
        assert sum(slot.stop - slot.start for slot in slots) == (expected if ranks > 1 else 0)
        ordered = sorted((slot.start, slot.stop) for slot in slots if slot.stop > slot.start)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))
        assert all(start % 256 == 0 and end <= layout.size for start, end in ordered)


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_ranks_own_about_as_much(ranks):
    sizes = random.Random(0).choices([10, 41, 64, 7], k=200)
    owners = assign_owners(sizes, ranks)
    owned = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert max(owned) - min(owned) <= max(sizes)


@on_all_ranks
def test_the_first_message_may_be_empty(device):
    module = nn.Linear(3, 2).to(device)
    module.nothing = nn.Parameter(torch.empty(0, dtype=torch.float64, device=device))
    wrapped = SymmetricMemoryDataParallel(module)
    (wrapped(torch.ones(1, 3, device=device)).sum() + module.nothing.sum()).backward()
    wrapped.finish_gradient_synchronization()
    assert (module.bias.grad == 1).all()


def in_use_once_all_have_dropped_it(device):
    """Bytes of a GPU in use: those that peers can reach are given back once all ranks have let go of them."""
    gc.collect()
    dist.barrier()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    dist.barrier()
    return total - free


@on_all_ranks
def test_gradients_outlive_their_wrapper_whose_memory_is_given_back(device):
    module = nn.Linear(700, 900, device=device)  # of 2.5 MB, too large to share a message
    used = []
    for _ in range(4):
        wrapped = SymmetricMemoryDataParallel(module)
        wrapped(torch.ones(3, 700, device=device)).sum().backward()
        wrapped.finish_gradient_synchronization()
        del wrapped
        gc.collect()
        assert (module.weight.grad == 3).all()
        module.zero_grad()
        used.append(in_use_once_all_have_dropped_it(device))
    assert len(set(used[1:])) <= 1


@on_all_ranks
def test_parameters_outlive_their_optimizer_and_their_memory_is_given_back_with_them(device):
    used = []
    for _ in range(4):
        torch.manual_seed(0)
        module = nn.Linear(700, 900, device=device)
        optimizer = SymmetricMemoryShardedOptimizer(module.parameters(), torch.optim.SGD, lr=1)
        assert optimizer.peer_bytes >= 700 * 900 * 4
        before = [parameter.detach().clone() for parameter in module.parameters()]
        module(torch.ones(3, 700, device=device)).sum().backward()
        optimizer.step()
        del optimizer
        gc.collect()
        assert all(torch.equal(parameter, old - 3) for parameter, old in zip(module.parameters(), before, strict=True))
        del module
        used.append(in_use_once_all_have_dropped_it(device))
    assert len(set(used[1:])) <= 1


def pause(device):
    """Keep the device's queue, or the host, busy for a tenth of a second or so."""
    if device.type == "cuda":
        torch.cuda._sleep(200_000_000)
    else:
        time.sleep(0.1)


class Late(torch.optim.SGD):
    """Rank 1 takes its time to update."""

    def step(self, closure=None):
        parameter = self.param_groups[0]["params"][0]
        if dist.get_rank() == 1:
            pause(parameter.device)
        return super().step(closure)


@pytest.mark.parametrize("slow", range(2))
@on_all_ranks
def test_no_rank_gets_new_parameters_while_it_reads_the_old_ones_or_reads_before_it_has_them(device, slow):
    parameters = [nn.Parameter(torch.zeros(1000, device=device)) for _ in range(2)]
    optimizer = SymmetricMemoryShardedOptimizer(parameters, Late, lr=1)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        if dist.get_rank() == slow:
            pause(device)
        before = torch.stack([parameter.sum() for parameter in parameters])  # The host does not wait for it.
        optimizer.step()
        after = torch.stack([parameter.sum() for parameter in parameters])
        assert before.tolist() == [-1000.0 * step] * 2
        assert after.tolist() == [-1000.0 * (step + 1)] * 2


@on_all_ranks
def test_what_others_have_sent_is_not_overwritten_by_data_that_is_taken_in(device):
    """All parameters have got other data since the last step, and rank 1 is late in each of four parts."""
    parameters = [nn.Parameter(torch.zeros(1000, device=device)) for _ in range(4)]
    optimizer = SymmetricMemoryShardedOptimizer(parameters, Late, lr=1, bucket_size_mb=0.001)
    for _ in range(3):
        for parameter in parameters:
            parameter.data = torch.zeros_like(parameter)  # as vector_to_parameters and many averages of weights do
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert [parameter.unique().tolist() for parameter in parameters] == [[-1.0]] * 4
