"""Copies of the project in which Snakemake runs for real, with a configuration of a few tiny cells."""

import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import yaml

from cs336_systems.experiments.registry import EXPERIMENTS

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).with_name("toy")
STAND_INS = Path(__file__).with_name("stand_ins")
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
CELL = {"size": ["nano"], "context": [16], "warmup": [1], "steps": [2], "mode": ["forward"]}
GENERATED = {".venv", ".snakemake", "__pycache__", ".pytest_cache", "results", "submission"}
NO_CELLS: dict = {name: {} for name in EXPERIMENTS}
GRIDS = {
    # The others are measured like these three, and take longer.
    **NO_CELLS,
    "end_to_end": {"eager": {**CELL, "precision": ["fp32", "bf16"]}},
    "accumulation": {"all": {"additions": [10], "cast": [False, True]}},
    "autocast_dtypes": {"all": {"autocast": ["bf16"]}},
}


NUMERIC_TEST = "import pytest\n\n\n@pytest.mark.numeric\ndef test_it():\n    assert {}\n"
SECTIONS = {"nsys_profile", "pytorch_attention", "torch_compile", "flash_backward", "fsdp_tp_calcs"}
"""Sections of a copy's report: figures from tables and a trace. To draw all figures takes longer
than all else that a test looks at."""


def copy_project(folder: Path, grids: dict = GRIDS, sections: Collection[str] = SECTIONS) -> Path:
    """The project as a clone has it, with the given grids at both scales and the given sections of the report."""
    copy_files(ROOT, folder, project_files())
    shorten_report(folder, sections)
    edit_yaml(
        folder / "config.yaml",
        experiments={name: {"smoke": grid, "handout": grid} for name, grid in grids.items()},
        trace={scale: {"size": "nano", "context": 16} for scale in ("smoke", "handout")},
    )
    return folder


def project_files() -> list[str]:
    """The project's files: those that git tracks or does not ignore; without a checkout all but generated ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if names := subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines():
        return names
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    return [str(path) for path in paths if not GENERATED & set(path.parts)]


def shorten_report(folder: Path, sections: Collection[str]) -> None:
    """Leave of the report's contents some sections, and the figures that they show."""
    contents = yaml.safe_load((folder / "report/contents.yaml").read_text())
    parts = {
        part: {name: names[name] for name in names if name in sections} for part, names in contents["parts"].items()
    }
    modules = (folder / "scripts/answers").rglob("*.py")
    shown = "".join(path.read_text() for path in modules if {path.stem, path.parent.name} & set(sections))
    figures = {name: figure for name, figure in contents["figures"].items() if f'"{name}"' in shown}
    edit_yaml(folder / "report/contents.yaml", parts=parts, figures=figures)


def copy_files(source: Path, target: Path, names: Iterable[str | Path]) -> None:
    for name in names:
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def edit_yaml(path: Path, **changes: object) -> None:
    content = yaml.safe_load(path.read_text()) | changes
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def add_toy_experiment(folder: Path) -> None:
    """Add an experiment with a figure, a section, a tile and a check, by the steps of CONTRIBUTING.md."""
    files = [path.relative_to(TOY) for path in TOY.rglob("*") if path.suffix in (".py", ".j2")]
    assert not any((folder / name).exists() for name in files)
    copy_files(TOY, folder, files)
    additions = yaml.safe_load((TOY / "additions.yaml").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    edit_yaml(folder / "config.yaml", experiments=config["experiments"] | additions["config"])
    contents = yaml.safe_load((folder / "report/contents.yaml").read_text())
    merged = {key: contents[key] | additions["contents"][key] for key in contents}
    edit_yaml(folder / "report/contents.yaml", **merged)
    add_lines(folder, additions["entries"])


def copy_toy(folder: Path, *, on_gpus: bool = False) -> Path:
    """A project of the toy experiment alone; where GPUs are planned, a stand-in replaces its benchmark."""
    add_toy_experiment(copy_project(folder, NO_CELLS, sections=()))
    replace_numeric_tests(folder)
    if on_gpus:
        shutil.copy2(STAND_INS / "ping.py", folder / "cs336_systems/benchmarks/__main__.py")
        edit(folder / "cs336_systems/experiments/ping.py", '("test_ping",)', "()")
    return folder


def add_toy_parts(folder: Path) -> None:
    """Add a contender of each kind, a GPU, a rung and a metric, by the other recipes of CONTRIBUTING.md."""
    for additions in yaml.safe_load((TOY / "recipes.yaml").read_text()).values():
        add_lines(folder, additions)


def add_lines(folder: Path, additions: Mapping[str, Iterable[Mapping[str, str]]]) -> None:
    for name, entries in additions.items():
        for entry in entries:
            edit(folder / name, f"\n{entry['after']}\n", f"\n{entry['after']}\n{entry['lines']}")


def replace_numeric_tests(folder: Path, *experiments: str) -> None:
    """Let tests that pass at once, without PyTorch, stand in for those that these measurements wait for."""
    (folder / "tests/conftest.py").write_text("")
    for test in ("test_instruments", *(test for name in experiments for test in EXPERIMENTS[name].numeric_tests)):
        (folder / f"tests/{test.replace('.', '/')}.py").write_text(NUMERIC_TEST.format("True"))


def environment(folder: Path, gpus: int = 0) -> dict[str, str]:
    """The environment of a run in a folder; with GPUs, a stand-in for the driver reports this number of H200s."""
    path = [str(folder)]
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    if gpus:
        path.insert(0, str(STAND_INS))
        variables = {"STAND_IN_GPUS": ",".join(["NVIDIA H200"] * gpus)}
    own = ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_WORKER")  # with which tests in the folder would share others' files
    inherited = {key: value for key, value in os.environ.items() if key not in own}
    return {**inherited, **variables, "PYTHONPATH": os.pathsep.join(path)}


def snakemake(folder: Path, *arguments: str, check: bool = True, gpus: int = 0) -> str:
    return python(folder, *SNAKEMAKE[1:], *arguments, check=check, gpus=gpus)


def python(folder: Path, *arguments: str, check: bool = True, gpus: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(folder, gpus), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


def start(command: list[str], folder: Path) -> subprocess.Popen:
    """Start a command in a project, and go on meanwhile."""
    return subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def measured_jobs(folder: Path, *arguments: str, gpus: int = 0) -> set[str]:
    return set(re.findall(r"Measuring (\S+)", snakemake(folder, *arguments, gpus=gpus)))


def planned_jobs(folder: Path, *arguments: str, gpus: int = 0) -> set[str]:
    """Those that a dry run plans."""
    return measured_jobs(folder, "-n", *arguments, gpus=gpus)


def planned_rules(folder: Path, *arguments: str, gpus: int = 0) -> set[str]:
    return set(re.findall(r"^(\w+) +\d+$", snakemake(folder, "-n", *arguments, gpus=gpus), re.M)) - {"total"}


def rows(raw: Path) -> set[tuple]:
    """Every measured row below a folder, without its numbers: file, parameters, metric and status."""
    measured = set()
    for path in sorted(raw.rglob("*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                keys = list(row)
                measured.add((path.name, *(row[key] for key in keys[: keys.index("unit")]), row["status"]))
    return measured


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
