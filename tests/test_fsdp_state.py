"""Checkpoints of sharded models and optimizers: onto other numbers of processes, there and back."""

import copy
import os
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import DTensor

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.training_state import TrainingState, latest_checkpoint
from tests.ranks import PROCESSES, on_all_ranks
from tests.test_fsdp import OddModel, assert_same, make_batches, named, share, train


def shared_folder():
    """An empty folder, the same on all ranks, for whoever makes it to remove."""
    folders = [tempfile.TemporaryDirectory() if dist.get_rank() == 0 else None]
    names = [folder.name if folder else None for folder in folders]
    dist.broadcast_object_list(names)
    return folders[0], Path(names[0])


def model_on(device):
    model = OddModel().to(device)
    model.unused.requires_grad_(False)  # PyTorch's checkpoints want each parameter to have had a gradient.
    return model


def optimizer_of(model):
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1)


@on_all_ranks
def test_a_checkpoint_goes_onto_one_process_and_back(device):
    batches = share(make_batches(3, 3, device))
    fsdp = FullyShardedDataParallel(model_on(device))
    optimizer = optimizer_of(fsdp)
    train(fsdp, optimizer, batches)
    held, folder = shared_folder()
    dcp.save({"training": TrainingState(fsdp, optimizer)}, checkpoint_id=folder / "two")

    alone = model_on(device)
    state_alone = TrainingState(alone, optimizer_of(alone))
    dcp.load({"training": state_alone}, checkpoint_id=folder / "two", no_dist=True)
    assert_same(fsdp.gather_full_parameters(), named(alone))
    if dist.get_rank() == 0:
        dcp.save({"training": state_alone}, checkpoint_id=folder / "one", no_dist=True)
    dist.barrier()

    again = FullyShardedDataParallel(model_on(device))
    optimizer_again = optimizer_of(again)
    dcp.load({"training": TrainingState(again, optimizer_again)}, checkpoint_id=folder / "one")
    for model, its_optimizer in ((fsdp, optimizer), (again, optimizer_again)):
        train(model, its_optimizer, batches)
    assert_same(again.gather_full_parameters(), fsdp.gather_full_parameters())
    dist.barrier()
    if held:
        held.cleanup()


@on_all_ranks
def test_states_are_dtensors_which_load_from_whole_tensors_too(device):
    fsdp = FullyShardedDataParallel(OddModel().to(device))
    state = fsdp.module.state_dict()
    assert list(state) == list(OddModel().state_dict())
    whole_everywhere = [name for name, value in state.items() if not isinstance(value, DTensor)]
    replicated = ("norm.weight", "scale", "same_table", "table.weight")
    assert all(name in replicated or name.endswith("bias") for name in whole_everywhere)
    whole = {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in state.items()}
    assert_same(whole, fsdp.gather_full_parameters())
    other = OddModel().to(device)
    other.load_state_dict(whole)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    fsdp.module.load_state_dict(other.state_dict())
    assert_same(fsdp.gather_full_parameters(), named(other))
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        fsdp.module.load_state_dict({**other.state_dict(), "head.weight": torch.zeros(3, 5)})
    fsdp.load_state_dict(copy.deepcopy(fsdp.state_dict()))
    assert isinstance(fsdp.module.head, nn.Linear)


def save_twice(rank, folder):
    """Save a model of ones, then one of twos, at which rank 1 is killed when it has written its part."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)
    fsdp = FullyShardedDataParallel(nn.Linear(3, 5))
    optimizer = optimizer_of(fsdp)
    write = FileSystemWriter.write_data

    def write_and_die(*arguments):
        result = write(*arguments)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    for step, writer in ((1, write), (2, write_and_die)):
        with torch.no_grad(), mock.patch.object(FileSystemWriter, "write_data", writer):
            for parameter in fsdp.parameters():
                parameter.fill_(step)
            dcp.save({"training": TrainingState(fsdp, optimizer)}, checkpoint_id=Path(folder) / f"{step:08}")


def test_a_rank_killed_while_it_saves_leaves_the_previous_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        torch.multiprocessing.spawn(save_twice, (str(tmp_path),), PROCESSES)
    assert any((tmp_path / "00000002").iterdir())
    assert latest_checkpoint(tmp_path) == tmp_path / "00000001"
    model = nn.Linear(3, 5)
    state = {"training": TrainingState(model, optimizer_of(model))}
    dcp.load(state, checkpoint_id=latest_checkpoint(tmp_path), no_dist=True)
    assert all((parameter == 1).all() for parameter in model.parameters())
