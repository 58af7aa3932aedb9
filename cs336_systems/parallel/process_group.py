"""A rank of a torchrun launch: its number, device and process group."""

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from cs336_systems.lifeline import end_with_the_launcher

JOIN_TIMEOUT = timedelta(seconds=60)
"""How long a rank waits for the others to start: many times the time to import PyTorch and initialize a GPU."""
TIMEOUT = ("CS336_COLLECTIVE_TIMEOUT_S", "180")
"""The environment variable with the seconds that a rank waits for the others in a collective, and its default. The time
covers differences between ranks in compiling a model. A dead rank needs no timeout: torchrun notices it at once."""
GRACE_S = 1.0
"""How long a rank delays raising an error; torchrun polls the ranks ten times as often."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of a launch."""

    number: int
    """The rank, from 0; only rank 0 writes and prints."""
    processes: int
    local_number: int
    """The local rank, from 0, among the processes of this host."""
    local_processes: int


def current_rank() -> Rank:
    """Read this process's rank in a torchrun launch from the environment; outside a launch, a single process.

    A ValueError names a variable with an invalid value.
    """
    processes = environment_integer("WORLD_SIZE", "1", at_least=1)
    local_processes = environment_integer("LOCAL_WORLD_SIZE", "1", at_least=1, at_most=processes)
    rank = Rank(
        number=environment_integer("RANK", "0", at_least=0, at_most=processes - 1),
        processes=processes,
        local_number=environment_integer("LOCAL_RANK", "0", at_least=0, at_most=local_processes - 1),
        local_processes=local_processes,
    )
    if processes > 1:
        collective_timeout()
        check_meeting_point(listens=rank.number == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True")
    return rank


def environment_integer(name: str, default: str, *, at_least: int, at_most: int | None = None) -> int:
    """Read an integer from an environment variable, or its default; a ValueError says which integers are allowed."""
    text = os.environ.get(name, default)
    if not text.isdecimal() or int(text) < at_least or (at_most is not None and int(text) > at_most):
        limits = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise ValueError(f"the environment variable {name} is {text!r}; allowed: integers {limits}")
    return int(text)


def collective_timeout() -> timedelta:
    """How long a rank waits for the others in a collective."""
    return timedelta(seconds=environment_integer(*TIMEOUT, at_least=1, at_most=86_400))


def check_meeting_point(*, listens: bool) -> None:
    """Raise a ValueError if ranks cannot rendezvous at MASTER_ADDR and MASTER_PORT, where this process may listen."""
    port = environment_integer("MASTER_PORT", "", at_least=1, at_most=65_535)
    address = os.environ.get("MASTER_ADDR", "")
    try:
        socket.getaddrinfo(address, port)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"the environment variable MASTER_ADDR is {address!r} ({error}); allowed: the name or address of rank 0's "
            "host"
        ) from None
    try:
        if listens:
            socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"the environment variable MASTER_PORT is '{port}' ({os.strerror(error.errno or 0)}); allowed: a free port"
        ) from None


@contextlib.contextmanager
def process_group(rank: Rank, device: torch.device) -> Iterator[None]:
    """Connect the ranks of a launch: NCCL between GPUs, each bound to its own, Gloo between CPUs.

    Ranks leave the context together: the code after it runs only if every rank has reached its end. A rank that raises
    or is killed ends the launch: torchrun ends the other ranks and reports the failed rank and its error. The end of
    torchrun itself also ends all ranks. A single process has no group.
    """
    if rank.processes == 1:
        yield
        return
    timeout = collective_timeout()
    end_with_the_launcher()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=join(rank),
            rank=rank.number,
            world_size=rank.processes,
            timeout=timeout,
            device_id=device if on_gpu else None,
        )
        yield
        dist.barrier()
    except Exception as error:
        error.add_note(f"This happened on rank {rank.number} of {rank.processes}.")
        # The error may be caused by another rank's death. Then torchrun detects that rank and ends this one.
        time.sleep(GRACE_S)
        # Python would wait for collectives in flight, which wait for other ranks.
        atexit.register(_end_at_once)
        raise
    dist.destroy_process_group()


def join(rank: Rank) -> Store:
    """Connect to the launch's store, and wait until all ranks have reached it; a TimeoutError names missing ones."""
    store, *_ = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
    present = [f"rank {number}" for number in range(rank.processes)]
    store.set(present[rank.number], "")
    try:
        store.wait(present, JOIN_TIMEOUT)
    except dist.DistStoreError:
        missing = [name for name in present if not store.check([name])]
        waited = f"{JOIN_TIMEOUT.total_seconds():g} s"
        raise TimeoutError(f"not started within {waited}: {', '.join(missing)} of {rank.processes}") from None
    return store


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
