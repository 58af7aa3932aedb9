"""Runs code under test: receives tensors and settings, returns tensors. It knows no reference results and makes no
verdict.

One process imports PyTorch and then forks the requested number of ranks for each launch; only these import the code
under test, whose package may also be called `cs336_systems`. The reader treats everything that a rank sends as data.

Launch: python -P -m cs336_systems.verify.worker FILE_DESCRIPTOR
"""

import contextlib
import datetime
import gc
import importlib
import json
import linecache
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

import cs336_systems.adapters as calls
from cs336_systems import folder_modules, implementations
from cs336_systems.adapters import Adapters, Wrapped, by_end
from cs336_systems.folder_modules import LAYERS_MODULE, FolderModules, modules_of
from cs336_systems.implementations import load_path
from cs336_systems.verify import models

Header = Mapping[str, Any]
Tensors = dict[str, Tensor]
Result = tuple[dict[str, Any], Tensors]

SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER: orphans of a rank become this process's children
COLLECTIVE_S = 20
MOST_RANKS = 4
IMPORTED_ONCE = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "triton")
"""Imported once, since otherwise most ranks would import it: optimizers need PyTorch's compiler."""
OURS = {__file__, calls.__file__, folder_modules.__file__, implementations.__file__}
"""Files between this process and the code under test."""


# --- messages: JSON and tensors, never a pickle -----------------------------------------------------------------------


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """Bytes of a header and of tensors by name."""
    text = json.dumps(header).encode()
    data = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in (tensors or {}).items()}
    return len(text).to_bytes(8, "little") + text + (safetensors.torch.save(data) if data else b"")


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of `pack`.

    Raises:
        ValueError: it is not such a message.
    """
    size = int.from_bytes(message[:8], "little")
    header, rest = json.loads(message[8 : 8 + size]), message[8 + size :]
    return header, safetensors.torch.load(rest) if rest else {}


# --- the code under test ----------------------------------------------------------------------------------------------


class Unloadable(Exception):
    """The code under test cannot be imported, or lacks the named object."""


def load(path: str) -> Any:
    """Load the object named by FOLDER/package.module:name.

    Raises:
        Unloadable: it does not exist, or its module cannot be imported.
    """
    try:
        return load_path(path)
    except BaseException as error:  # whatever a user's module raises
        message = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise Unloadable(message) from error


def layers(modules: FolderModules) -> models.Layers:
    """The handout's layer classes, if the code under test has them, since its FSDP may look for them."""
    try:
        module = modules.load(LAYERS_MODULE)
        linear, embedding = module.Linear, module.Embedding
        if linear(3, 5).weight.shape == (5, 3) and embedding(7, 3).weight.shape == (7, 3):
            return models.Layers(linear, embedding)
    except Exception:  # if theirs fails: PyTorch's
        pass
    return models.Layers()


# --- programs, one for each family ------------------------------------------------------------------------------------


def run_attention(adapters: Adapters, header: Header, given: Tensors, device: torch.device) -> Result:
    """Output and gradients; with `strided`, of packed inputs."""
    if header["strided"]:
        leaf = given["qkv"].to(device).requires_grad_()
        leaves = [part.movedim(0, 1) for part in leaf.unbind(1)]
        grad_o = torch.ones((), device=device).expand(leaves[0].shape)
    else:
        leaves = [given[name].to(device).requires_grad_(header["backward"]) for name in "qkv"]
        grad_o = given["grad_o"].to(device)
    o = adapters.attention()(*leaves, header["causal"])
    if not isinstance(o, Tensor):
        raise TypeError(f"its output is a {type(o).__name__}, not a tensor")
    results = {"output": o}
    if header["backward"]:
        if not o.requires_grad:
            raise NotImplementedError("it has no backward pass")
        gradients = torch.autograd.grad(o, leaves, grad_o, allow_unused=True)
        if any(gradient is None for gradient in gradients):
            raise NotImplementedError("its backward pass returns no gradient")
        results |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {}, results


def run_data_parallel(adapters: Adapters, header: Header, given: Tensors, device: torch.device) -> Result:
    """Weights after wrapping, gradients of the first step, and final weights."""
    model = models.build(header["model"], models.Layers(), parts(given, "weight"), device)
    wrapped = adapters.data_parallel(model, header["bucket_mb"])
    results = {f"start.{name}": p.clone() for name, p in named(wrapped.model, model).items()}
    for step in steps(wrapped, given, header["steps"], device):
        if step == 0:
            gradients = {name: p.grad for name, p in named(wrapped.model, model).items() if p.grad is not None}
            results |= {f"gradient.{name}": gradient.clone() for name, gradient in gradients.items()}
    return {}, results | {f"end.{name}": p for name, p in named(wrapped.model, model).items()}


def steps(wrapped: Wrapped, given: Tensors, count: int, device: torch.device) -> Iterator[int]:
    """Train a wrapped model; each step stops before its update."""
    model = wrapped.model
    optimizer = momentum(model)
    for step in range(count):
        if wrapped.before:
            wrapped.before(model, optimizer)
        optimizer.zero_grad()
        models.loss(model, given[f"batch.{step}"].to(device)).backward()
        if wrapped.after:
            wrapped.after(model, optimizer)
        yield step
        optimizer.step()


def train_with(make: Callable[..., Any], header: Header, given: Tensors, device: torch.device) -> Result:
    """Weights after each step, and the number of state elements in this rank's optimizers.

    `make` creates an optimizer from parameters, another optimizer's class, and options.
    """
    parameters = {}
    for name, value in parts(given, "weight").items():
        value = value.to(device, copy=True)  # it is trained, and another verdict may use the same inputs
        value = value.mT.contiguous().mT if name in header["transposed"] else value
        parameters[name] = nn.Parameter(value, requires_grad=name not in header["frozen"])
    kind, made = getattr(torch.optim, header["optimizer"]), []

    def note(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        kind.__init__(optimizer, *arguments, **options)
        made.append(optimizer)

    watched = type(kind.__name__, (kind,), {"__init__": note})
    groups = [{**group, "params": [parameters[name] for name in group["params"]]} for group in header["groups"]]
    first = list(parameters.values()) if not groups else groups[: 1 if header["add_later"] else None]
    optimizer = make(first, watched, **header["options"])
    results: Tensors = {}
    for step in range(header["steps"]):
        optimizer.zero_grad()
        for name, gradient in parts(given, f"gradient.{step}").items():
            parameters[name].grad = torch.empty_like(parameters[name]).copy_(gradient)
        optimizer.step()
        for group in optimizer.param_groups if header["decay"] != 1 else ():
            group["lr"] *= header["decay"]  # as schedulers do, which need it there; the handout does not
        results |= {f"{step}.{name}": p.clone() for name, p in parameters.items()}
        if step == 0 and header["add_later"]:
            optimizer.add_param_group(groups[1])
    states = {id(state): state for each in {id(o): o for o in made}.values() for state in each.state.values()}
    held = sum(x.numel() for state in states.values() for x in state.values() if torch.is_tensor(x) and x.dim())
    return {"held": held}, results


def run_fsdp(adapters: Adapters, header: Header, given: Tensors, device: torch.device) -> Result:
    """Full weights after wrapping and after all steps, and the number of their elements on this rank between steps."""
    modules = modules_of(adapters.path.rpartition("/")[0])
    model = models.build(header["model"], layers(modules), parts(given, "weight"), device)
    names = [name for name, _ in model.named_parameters()]
    wrapped = adapters.fsdp(model, getattr(torch, header["compute_dtype"]) if header["compute_dtype"] else None)
    results = {f"start.{name}": p for name, p in whole(wrapped, names).items()}
    for _ in steps(wrapped, given, header["steps"], device):
        pass
    local = [p.to_local() if hasattr(p, "to_local") else p for p in wrapped.model.parameters()]
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in local if p.numel()}
    held = sum(storages.values()) // 4
    return {"held": held}, results | {f"end.{name}": p for name, p in whole(wrapped, names).items()}


PROGRAMS: dict[str, Callable[[Adapters, Header, Tensors, torch.device], Result]] = {
    "attention": run_attention,
    "data_parallel": run_data_parallel,
    "sharded_optimizer": lambda adapters, *case: train_with(adapters.sharded_optimizer, *case),
    "fsdp": run_fsdp,
}


def parts(given: Mapping[str, Tensor], prefix: str) -> Tensors:
    """Tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in given.items() if name.startswith(f"{prefix}.")}


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """SGD, which distinguishes a zero gradient from none and amplifies no rounding."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def named(wrapped: nn.Module, model: nn.Module) -> dict[str, nn.Parameter]:
    """A wrapped model's parameters by their names in the model, without the wrapper's prefix."""
    names = [name for name, _ in model.named_parameters()]
    parameters = dict(wrapped.named_parameters())
    by_name = by_end(parameters, names)
    if len(by_name) < len(names) == len(parameters):
        return dict(zip(names, parameters.values(), strict=True))
    if missing := [name for name in names if name not in by_name]:
        raise LookupError(f"it has no parameter {missing[0]}; it has {', '.join(parameters)}")
    return by_name


def whole(wrapped: Wrapped, names: Sequence[str]) -> Tensors:
    """The unsharded weights of a sharded model, by their names in the model."""
    if wrapped.gather:
        given = dict(wrapped.gather())
    else:
        shards = wrapped.model.named_parameters(remove_duplicate=False)
        given = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in shards}
    weights = by_end(given, names)
    if missing := [name for name in names if name not in weights]:
        raise LookupError(f"its gathered weights have no {missing[0]}; they have {', '.join(given) or 'nothing'}")
    return {name: p.detach().clone() for name, p in weights.items()}


# --- a rank -----------------------------------------------------------------------------------------------------------


def serve(connection: Connection, launch: Header, rank: int) -> NoReturn:
    """Run cases until this process is ended."""
    folder = Path(launch["folder"]).resolve()
    device = torch.device("cuda" if launch["gpu"] else "cpu")
    if not launch["gpu"]:
        resource.setrlimit(resource.RLIMIT_DATA, (launch["memory"], launch["memory"]))
    if launch["ranks"] > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(launch["ranks"])}
        dist.init_process_group(
            "gloo",
            init_method=f"file://{launch['store']}",
            rank=rank,
            world_size=launch["ranks"],
            timeout=datetime.timedelta(seconds=COLLECTIVE_S),
        )
    os.chdir(folder)
    modules = modules_of(launch["folder"])
    modules.own_layers = modules.has(LAYERS_MODULE.partition(".")[0])
    program, adapters = PROGRAMS[launch["family"]], Adapters(f"{launch['folder']}/{launch['path']}", load)
    while True:
        header, given = unpack(connection.recv_bytes())
        torch.manual_seed(rank)
        try:
            counts, results = program(adapters, header, given, device)
            answer = pack({"counts": counts}, results)
        except BaseException as error:  # whatever their code raises
            answer = pack({"raised": described(error, folder)})
        connection.send_bytes(answer)


def described(error: BaseException, folder: Path) -> Header:
    """An exception: its kind, its message, where in the folder it was raised, and whether it came through Triton."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    theirs = [frame for frame in frames if frame.filename.startswith(str(folder)) and frame.filename not in OURS]
    where = ""
    if theirs:
        last = theirs[-1]
        line = linecache.getline(last.filename, last.lineno or 0).strip()
        where = f"{os.path.relpath(last.filename, folder)}:{last.lineno}: {line}"
    through_triton = any("triton" in frame.filename for frame in frames)
    message = ""
    with contextlib.suppress(Exception):  # of its own text
        message = str(error)[:2000]
    return {"kind": type(error).__name__, "message": message, "where": where[:500], "triton": through_triton}


def rank_process(end: int, launch: Header, rank: int, log: int) -> NoReturn:
    """The process of a rank: its own session, its output in a log, nothing open but its own connection."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        serve(Connection(end), launch, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)


# --- the process that forks -------------------------------------------------------------------------------------------


def end_all(pids: Sequence[int], gone: Sequence[int]) -> list[int | None]:
    """Kill the ranks and all their child processes in any session; return how ranks ended that were already gone."""
    ends: dict[int, int] = {}
    this = psutil.Process()
    for attempt in range(200):  # orphans of a killed process become children of this one
        reap(ends)
        waited = all(pids[rank] in ends for rank in gone) or attempt > 50
        alive = {*(child.pid for child in this.children()), *(set(pids) - set(ends))}
        if not alive:
            break
        for pid in alive if waited else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [ends.get(pids[rank]) for rank in gone]


def reap(ends: dict[int, int]) -> None:
    """Record how ended children have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            ends[pid] = os.waitstatus_to_exitcode(status)


def fork_ranks(control: socket.socket, launch: Header, ends: Sequence[int], log: int) -> list[int]:
    """Fork the ranks of a launch, each with the descriptor of its own connection."""
    pids = []
    for rank, end in enumerate(ends):
        pid = os.fork()
        if not pid:
            control.close()
            for other in ends:
                if other != end:
                    os.close(other)
            rank_process(end, launch, rank, log)
        pids.append(pid)
    for end in ends:
        os.close(end)
    return pids


def main(descriptor: int) -> None:
    """Launch ranks and end them on request: one message at a time, each with a reply."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    torch.set_num_threads(1)
    for name in IMPORTED_ONCE:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.freeze()  # garbage collection in a rank would copy all memory that it shares with this process
    with socket.socket(fileno=descriptor) as control:
        while True:
            message, ends, _, _ = socket.recv_fds(control, 2**16, MOST_RANKS)
            if not message:
                return
            launch = json.loads(message)
            log = os.open(launch["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with tempfile.TemporaryDirectory() as folder:
                pids = fork_ranks(control, launch | {"store": f"{folder}/store"}, ends, log)
                os.close(log)
                control.sendall(json.dumps(pids).encode())
                gone = json.loads(control.recv(2**16) or "[]")  # the launch is over; these have ended by themselves
                ends_of_gone = end_all(pids, gone)
            with contextlib.suppress(BrokenPipeError):  # the requester is gone
                control.sendall(json.dumps(ends_of_gone).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # Python would spend a second on tearing down PyTorch
