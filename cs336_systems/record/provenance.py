"""Provenance of a measurement: hardware, software versions, source and time."""

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from cs336_systems.record.machine import detect, version_of
from cs336_systems.record.rows import Provenance
from cs336_systems.record.source import DIGEST_CHARACTERS


def collect(device: torch.device, *, gpus: int, nodes: int = 1, seed: int, startup_seconds: float) -> Provenance:
    """Collect the provenance of a job, given its number of GPUs and machines; each row has its own revisions."""
    machine = detect()
    on_gpu = device.type == "cuda"
    commit, dirty = _git_state()
    return Provenance(
        gpu=torch.cuda.get_device_name(device) if on_gpu else "",
        gpu_count=gpus,
        nodes=nodes,
        gpu_memory=machine.gpu_memory if on_gpu else 0,
        links=machine.links if on_gpu else "",
        cpu=machine.cpu,
        cores=machine.cpu_count,
        driver=machine.driver if on_gpu else "",
        cuda=torch.version.cuda or "",
        cudnn=_cudnn_version() if on_gpu else "",
        nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu and dist.is_nccl_available() else "",
        torch=torch.__version__,
        torch_files=torch_files(),
        triton=version_of("triton"),
        flash_attn=version_of("flash-attn-4"),
        python=platform.python_version(),
        tf32=rounds_to_tf32(device),
        git_commit=commit,
        git_dirty=dirty,
        revisions="",
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        startup_seconds=max(startup_seconds, 0.0),  # The host's clock may have been set back in the meantime.
    )


@cache
def torch_files() -> str:
    """The digest of the imported PyTorch, cached since it reads thousands of files."""
    return files_digest(Path(torch.__file__).parent)


def files_digest(package: Path) -> str:
    """Digest a package's Python files, and the names and sizes of its libraries, which are large."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.py", "*.so*") for path in package.rglob(pattern)):
        content = path.read_bytes() if path.suffix == ".py" else str(path.stat().st_size).encode()
        digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def rounds_to_tf32(device: torch.device) -> bool:
    """Whether fp32 matmuls lose bits: 1 + 2⁻¹² survives fp32's 23-bit fraction but not TF32's 10 bits."""
    value = 1 + 2**-12
    product = torch.full((64, 64), value, device=device) @ torch.eye(64, device=device)
    return not bool((product == value).all())


def _cudnn_version() -> str:
    """Major, minor and patch version of the loaded cuDNN, as in 9.19.0; empty without one."""
    number = torch.backends.cudnn.version()
    return "" if number is None else f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _git_state() -> tuple[str, bool | None]:
    """Commit and dirty flag of this file's checkout; recorded results and the configuration do not make it dirty."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/"]
        status += [":(exclude,top)recorded", ":(exclude,top)config.yaml"]
        changes = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GIT_COMMIT", ""), None
    return commit, bool(changes.strip())
