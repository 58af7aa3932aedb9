"""PyTorch's flight recorder shows the messages of a step, unless there were more than it keeps."""

import torch
import torch.distributed as dist

from cs336_systems.benchmarks.comparison.messages import Messages
from tests.support.ranks import on_all_ranks

KEPT = 2000


@on_all_ranks
def test_messages_of_numbers_are_counted(device):
    ranks = dist.get_world_size()
    part, whole = torch.ones(5, device=device), torch.ones(5 * ranks, device=device)
    messages = Messages()
    dist.all_reduce(part)
    dist.broadcast(part.bfloat16(), 0)
    dist.all_gather([*whole.chunk(ranks)], part)
    dist.all_reduce(torch.ones(3, dtype=torch.int64, device=device))  # a flag's
    dist.barrier()
    assert messages.count() == (3, 20 + 10 + 20 * ranks)
    messages.restart()
    assert messages.count() == (0, 0)
    for _ in range(KEPT + 1):
        dist.all_reduce(part)
    assert messages.count() is None
    messages.restart()
    dist.all_reduce(part)
    assert messages.count() == (1, 20)
