"""Where a measurement is said to come from."""

import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from cs336_systems.record import provenance

CPU = torch.device("cpu")


def collect(device=CPU):
    return provenance.collect(device, gpus=int(device.type == "cuda"), seed=7, startup_seconds=1.5)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository of one commit in which the package seems to lie; a function that runs git in it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "cs336_systems" / "measure" / "provenance.py"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "recorded").mkdir()
    for name in ("code.py", "config.yaml", "recorded/a.csv"):
        (tmp_path / name).write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return git


def test_versions_and_seed():
    origin = collect()
    assert origin.python == platform.python_version()
    assert origin.torch == torch.__version__
    assert (origin.seed, origin.startup_seconds) == (7, 1.5)
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(origin.utc) < timedelta(minutes=1)


def test_a_patched_library_of_the_same_version_is_seen(tmp_path):
    package = tmp_path / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("fast = False\n")
    (package / "lib" / "libtorch.so.2").write_bytes(bytes(10))
    (package / "notes.txt").write_text("1")
    whole = provenance.files_digest(package)
    (package / "notes.txt").write_text("2")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"1")
    assert provenance.files_digest(package) == whole
    seen = {whole}
    (package / "__init__.py").write_text("fast = True!\n")  # as long as before
    seen.add(provenance.files_digest(package))
    (package / "lib" / "libtorch.so.2").write_bytes(bytes(11))
    seen.add(provenance.files_digest(package))
    (package / "__init__.py").rename(package / "_init__.py")
    seen.add(provenance.files_digest(package))
    assert len(seen) == 4
    assert provenance.files_digest(Path(torch.__file__).parent) == collect().torch_files != whole


def test_a_measurement_on_the_cpu_names_no_gpu():
    origin = collect()
    assert (origin.gpu, origin.gpu_count, origin.gpu_memory, origin.driver, origin.cudnn) == ("", 0, 0, "", "")
    assert origin.cpu
    assert (origin.links, origin.nccl, origin.cores) == ("", "", len(os.sched_getaffinity(0)))


@pytest.mark.gpu
def test_a_measurement_on_the_gpu_names_it():
    origin = collect(torch.device("cuda"))
    assert origin.gpu == torch.cuda.get_device_name()
    assert origin.gpu_count == 1
    assert re.fullmatch(r"9\.\d+\.\d+", origin.cudnn)
    assert re.fullmatch(r"2\.\d+\.\d+", origin.nccl)
    assert re.fullmatch(r"\d+ NVLinks|PCIe \d\.0 x\d+", origin.links)
    assert origin.gpu_memory >= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize(
    ("name", "dirty"),
    [(None, False), ("code.py", True), ("config.yaml", False), ("recorded/a.csv", False), ("untracked.py", False)],
)
def test_changes_to_tracked_code_are_flagged(repository, tmp_path, name, dirty):
    if name:
        (tmp_path / name).write_text("2\n")
    origin = collect()
    assert (origin.git_commit, origin.git_dirty) == (repository("rev-parse", "HEAD"), dirty)


@pytest.mark.parametrize("commit", ["", "abc123"])
def test_without_git_the_environment_says_the_commit(monkeypatch, commit):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("GIT_COMMIT", commit)
    origin = collect()
    assert (origin.git_commit, origin.git_dirty) == (commit, None)
