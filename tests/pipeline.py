"""Snakemake on copies of the project, so that no test touches the results of the checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from cs336_systems.experiments.registry import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PARTS = "Snakefile", "config.yaml", "pyproject.toml", "cs336_systems", "profiles", "report", "rules", "scripts", "tests"
TINY = {
    "end_to_end": {
        "eager": {
            "size": ["nano"],
            "context": [16],
            "precision": ["fp32", "bf16"],
            "warmup": [1],
            "steps": [2],
            "mode": ["train_step", "forward_backward", "forward"],
        },
    },
    "accumulation": {"all": {"accumulator": ["fp32", "fp16"], "addend": ["fp32", "fp16"], "cast": [False, True]}},
    "autocast_dtypes": {"all": {"autocast": ["fp16", "bf16"]}},
}
"""Grids of seconds. Every other experiment is planned without a cell, so that its section says so."""


def copy_project(folder: Path) -> Path:
    """A copy of everything that Snakemake reads, without results."""
    folder.mkdir(parents=True)
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def configure_tiny(folder: Path) -> None:
    """Replace a copy's grids by tiny ones, the same at both scales."""
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    grids = {name: TINY.get(name, {}) for name in EXPERIMENTS}
    config["experiments"] = {name: {"smoke": grid, "handout": grid} for name, grid in grids.items()}
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """An environment without GPU, in which the folder's package comes before the installed one."""
    return os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


def snakemake_command(*arguments: str) -> list[str]:
    """Snakemake of the interpreter that runs the tests."""
    return [str(Path(sys.executable).with_name("snakemake")), *arguments]


def snakemake(folder: Path, *arguments: str, fails: bool = False) -> str:
    """What Snakemake prints when it runs in a folder; its exit status must be as expected."""
    done = subprocess.run(
        snakemake_command(*arguments),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == fails, done.stdout
    return done.stdout


def planned_jobs(output: str) -> dict[str, int]:
    """Rules and numbers of jobs in the table that Snakemake prints; empty where nothing is to be done."""
    if "Nothing to be done" in output:
        return {}
    table = re.search(r"^job +count\n[- ]+\n(.*?)^total ", output, re.MULTILINE | re.DOTALL)
    assert table, output
    return {rule: int(count) for rule, count in (line.split() for line in table[1].splitlines())}


def planned_measurements(output: str) -> list[str]:
    """Experiment and job of each measurement that Snakemake announces."""
    return re.findall(r"Measuring (\w+: \S+)", output)
