"""Checkpoints of sharded models and optimizers: onto other numbers of processes, there and back."""

import contextlib
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
from torch.distributed.tensor import Shard
from torch.utils._pytree import tree_leaves

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.training_state import TrainingState, latest_checkpoint
from cs336_systems.parallel.update_in_backward import UpdateInBackward, units_of
from cs336_systems.training import MasterAdamW
from tests.parallel.test_fsdp import OddModel, assert_same, named
from tests.support.ranks import PROCESSES, launch, on_all_ranks
from tests.verify.training import make_batches, own_parts, train, whole


@contextlib.contextmanager
def shared_folder():
    """An empty folder, the same on all ranks."""
    with tempfile.TemporaryDirectory() if dist.get_rank() == 0 else contextlib.nullcontext() as name:
        names = [name]
        dist.broadcast_object_list(names)
        yield Path(names[0])
        dist.barrier()


def optimizer_of(model, kind=torch.optim.AdamW):
    return kind([p for p in model.parameters() if p.requires_grad], lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, MasterAdamW])
@on_all_ranks
def test_a_checkpoint_goes_onto_one_process_and_back(device, kind):
    def make():
        model = OddModel().to(device, torch.bfloat16 if kind is MasterAdamW else None)
        model.unused.requires_grad_(False)  # PyTorch's checkpoints want each parameter to have had a gradient.
        return model

    batches = own_parts(make_batches(3, device))
    fsdp, alone, again = FullyShardedDataParallel(make()), make(), FullyShardedDataParallel(make())
    optimizers = [optimizer_of(model, kind) for model in (fsdp, alone, again)]
    train(fsdp, batches, optimizers[0])
    states = [{"training": TrainingState(*pair)} for pair in zip((fsdp, alone, again), optimizers, strict=True)]
    with shared_folder() as folder:
        dcp.save(states[0], checkpoint_id=folder / "two")
        dcp.load(states[1], checkpoint_id=folder / "two", no_dist=True)
        assert_same(fsdp.gather_full_parameters(), named(alone))
        if dist.get_rank() == 0:
            dcp.save(states[1], checkpoint_id=folder / "one", no_dist=True)
        dist.barrier()
        dcp.load(states[2], checkpoint_id=folder / "one")
    for model, optimizer in ((fsdp, optimizers[0]), (again, optimizers[2])):
        train(model, batches, optimizer)
    assert_same(again.gather_full_parameters(), fsdp.gather_full_parameters())


@pytest.mark.parametrize("make", [torch.optim.AdamW, MasterAdamW])
@on_all_ranks
def test_a_checkpoint_of_an_update_in_backward_goes_onto_one_process_and_back(device, make):
    def new():
        return nn.Sequential(*(nn.Linear(5, 5) for _ in range(3))).to(device, kind)

    def train(module, finish):
        for step in range(2):
            x = torch.randn(3, 5, generator=torch.Generator().manual_seed(step)).to(device, kind)
            module.zero_grad()
            module(x).float().square().sum().backward()  # the same on all ranks
            finish()
        return [whole(parameter.detach()) for parameter in module.parameters()]

    kind = torch.float32 if make is torch.optim.AdamW else torch.bfloat16
    module = new()
    update = UpdateInBackward(units_of(module), make, lr=0.1)
    train(module, update.finish)
    alone, sharded, again = new(), FullyShardedDataParallel(new()), new()
    optimizers = [make(model.parameters()) for model in (alone, sharded)]
    updates = UpdateInBackward(units_of(again), make)
    others = (TrainingState(alone, optimizers[0]), TrainingState(sharded, optimizers[1]), TrainingState(again, updates))
    with shared_folder() as folder:
        dcp.save({"training": TrainingState(module, update)}, checkpoint_id=folder / "two")
        for state in others:
            dcp.load({"training": state}, checkpoint_id=folder / "two")
        expected = train(module, update.finish)
        ends = (optimizers[0].step, lambda: (sharded.finish_gradient_synchronization(), optimizers[1].step()))
        for model, finish in zip((alone, sharded, again), (*ends, updates.finish), strict=True):
            assert all(map(torch.equal, train(model, finish), expected))
        dcp.save({"training": others[0]}, checkpoint_id=folder / "one")
        dcp.load({"training": others[2]}, checkpoint_id=folder / "one")
    with pytest.raises(ValueError, match=r"a parameter of shape \[5, 5\] that is not the model's"):
        TrainingState(new(), update)
    with pytest.raises(TypeError, match=r"of class Linear; allowed: a torch\.optim.Optimizer, or an UpdateInBackward"):
        TrainingState(module, module[0])


@on_all_ranks
def test_states_are_dtensors(device):
    fsdp = FullyShardedDataParallel(OddModel().to(device))
    state = fsdp.module.state_dict()
    assert list(state) == list(OddModel().state_dict())
    sharded = {name for name, value in state.items() if value.placements == (Shard(0),)}
    replicated = ("norm.weight", "scale", "same_table", "table.weight")
    assert sharded == {name for name in state if name not in replicated and not name.endswith("bias")}
    whole = {name: value.full_tensor() for name, value in state.items()}
    assert_same(whole, fsdp.gather_full_parameters())
    before = fsdp.state_dict()
    fsdp.load_state_dict(copy.deepcopy(before))
    assert fsdp.state_dict().keys() == before.keys()
    assert_same(fsdp.gather_full_parameters(), whole)


@on_all_ranks
def test_a_parameter_without_a_gradient_cannot_be_saved(device):
    module = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3), "frozen": nn.Linear(3, 3)}).to(device)
    module["frozen"].requires_grad_(False)
    module.forward = module["used"].forward
    optimizer = torch.optim.AdamW(module.parameters())
    TrainingState(module, optimizer).state_dict()
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 3, device=device)).sum().backward()
    optimizer.step()
    with pytest.raises(
        ValueError, match=r"^unused\.weight has no optimizer state, since it has had no gradient; allow"
    ):
        TrainingState(module, optimizer).state_dict()
    module["unused"].requires_grad_(False)
    TrainingState(module, optimizer).state_dict()


def everything(model, optimizer):
    """Copies of all tensors of a training run."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    return [tensor.clone() for tensor in tree_leaves(state) if isinstance(tensor, torch.Tensor)]


def trained(device, width=5, layers=2):
    fsdp = FullyShardedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device))
    optimizer = optimizer_of(fsdp)
    for _ in range(2):
        fsdp(torch.randn(3, width, device=device)).square().sum().backward()
        fsdp.finish_gradient_synchronization()
        optimizer.step()
    return fsdp, optimizer


FAULTS = {
    "truncated": ({}, "."),
    "fewer layers": ({"layers": 1}, "Missing key in checkpoint state_dict: training.model.1.weight"),
    "more layers": ({"layers": 3}, r"another model's: it has 2\.weight: \[5, 5\] where this one has nothing more"),
    "wider": ({"width": 6}, r"Size mismatch between saved torch.Size\(\[6, 6\]\) and current: torch.Size\(\[5, 5\]\)"),
}
"""The state that is saved instead, and the error."""


@pytest.mark.parametrize("fault", FAULTS)
@on_all_ranks
def test_a_checkpoint_that_does_not_load_changes_nothing(device, fault):
    saved, sentence = FAULTS[fault]
    model, optimizer = trained(device)
    before = everything(model, optimizer)
    with shared_folder() as folder:
        dcp.save({"training": TrainingState(*trained(device, **saved))}, checkpoint_id=folder)
        dist.barrier()
        if fault == "truncated" and dist.get_rank() == 0:
            for file in folder.glob("*.distcp"):
                os.truncate(file, file.stat().st_size // 2)
        dist.barrier()
        with pytest.raises((dcp.api.CheckpointException, ValueError), match=sentence):
            dcp.load({"training": TrainingState(model, optimizer)}, checkpoint_id=folder)
    after = everything(model, optimizer)
    assert len(before) == len(after) == 4 + 3 * 4
    assert all(torch.equal(whole(a), whole(b)) for a, b in zip(after, before, strict=True))


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
    assert latest_checkpoint(str(tmp_path)) is None
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        launch(save_twice, str(tmp_path))
    assert any((tmp_path / "00000002").iterdir())
    assert latest_checkpoint(tmp_path) == tmp_path / "00000001"
    model = nn.Linear(3, 5)
    state = {"training": TrainingState(model, optimizer_of(model))}
    dcp.load(state, checkpoint_id=latest_checkpoint(tmp_path), no_dist=True)
    assert all((parameter == 1).all() for parameter in model.parameters())
