"""The pipeline as a user meets it: what a change re-runs, what a bad configuration says, what survives kill -9."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.contents import read_contents

ROOT = Path(__file__).parents[2]
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
CELL = {"size": ["nano"], "context": [16], "warmup": [1], "steps": [2], "mode": ["forward"]}
GRIDS = {
    # Those whose correctness gate takes half a minute have no cells; they are measured like the others.
    **{name: {} for name in EXPERIMENTS},
    "end_to_end": {"eager": {**CELL, "precision": ["fp32", "bf16"]}},
    "accumulation": {"all": {"additions": [10], "cast": [False, True]}},
    "autocast_dtypes": {"all": {"autocast": ["bf16"]}},
}

pytestmark = pytest.mark.workflow


def copy_project(folder: Path) -> Path:
    """The project as a clone has it, with a configuration of a few tiny cells."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", ".", ":!results"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["experiments"] = {name: {"smoke": grids, "handout": grids} for name, grids in GRIDS.items()}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def snakemake(folder: Path, *arguments: str, check: bool = True) -> str:
    """Run Snakemake in a project and return all that it prints."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*SNAKEMAKE, *arguments], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


def planned(folder: Path, *arguments: str) -> set[str]:
    """The rules of which a dry run plans a job, with the experiment for the measurements."""
    output = snakemake(folder, "-n", *arguments)
    jobs = set(re.findall(r"^rule (\w+):", output, re.M)) - {"measure"}
    return jobs | set(re.findall(r"Measuring (\w+):", output)) | {
        re.sub(r".*: Typesetting .*", "writeup", line) for line in output.splitlines() if "Typesetting" in line
    }  # fmt: skip


def rows(folder: Path) -> set[tuple]:
    """Every measured row without its numbers: file, parameters and metric."""
    found = set()
    for path in sorted((folder / "results/cpu/raw").rglob("*.csv")):
        for row in csv.DictReader(path.open()):
            keys = list(row)
            found.add((path.name, *(row[key] for key in keys[: keys.index("unit")]), row["status"]))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project whose report is made."""
    folder = copy_project(tmp_path_factory.mktemp("finished"))
    snakemake(folder)
    return folder


@pytest.fixture
def project(finished, tmp_path):
    """A copy of the finished project, Snakemake's records included."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)  # copy2: modification times stay
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_everything_is_made_once(finished):
    assert (finished / "results/cpu/writeup.pdf").read_bytes().startswith(b"%PDF")
    assert "self-checks passed" in (finished / "results/cpu/verdict.txt").read_text()
    assert "Nothing to be done" in snakemake(finished)


def test_an_edited_section_is_only_typeset(project):
    edit(project / "report/sections/torch_compile.typ.j2", "alone.]", "by itself.]")
    assert planned(project, "writeup") == {"writeup"}
    start = time.monotonic()
    snakemake(project, "writeup")
    assert time.monotonic() - start < 12  # twice the promise: the machine may be busy with other tests


def test_an_edited_benchmark_measures_its_experiment_only(project):
    module = project / "cs336_systems/benchmarks/accumulation.py"
    module.write_text("# A comment changes nothing.\n" + module.read_text())
    assert planned(project) == set()
    edit(module, "ADDEND = 0.01", "ADDEND = 0.02")
    experiments = planned(project) & set(GRIDS)
    assert experiments == {"accumulation"}
    assert not planned(project, "writeup") & set(GRIDS)


def test_an_edited_model_measures_what_imports_it(project):
    edit(project / "cs336_systems/model.py", "eps: float = 1e-5", "eps: float = 1e-6")
    assert planned(project) & set(GRIDS) == {"end_to_end"}


def test_edited_tests_measure_nothing_again(project):
    edit(project / "tests/test_model.py", "import pytest\n", "import pytest\n\nEDITED = True\n")
    assert planned(project) == set()


def test_an_edited_closed_form_redoes_what_quotes_it(project):
    edit(project / "cs336_systems/accounting/attention.py", '"backward": 2.5', '"backward": 2')
    redone = planned(project)
    assert {"flash_throughput", "writeup"} <= redone
    assert not redone & {"warmup", *GRIDS}


@pytest.mark.parametrize(
    ("module", "redone"),
    [
        ("scripts/answers/flash_backward.py", {"writeup"}),
        ("scripts/checks/attention.py", {"checks", "writeup"}),
        ("scripts/figures/warmup.py", {"warmup", "writeup"}),
        ("scripts/style.py", {*read_contents().figures, "writeup"}),
        ("cs336_systems/experiments/autocast_dtypes.py", {"table", "coverage", "checks", "writeup"}),
    ],
)
def test_an_edited_module_redoes_what_finds_it_by_name(project, module, redone):
    with (project / module).open("a") as file:
        file.write("\n\nEDITED = True\n")
    stats = re.findall(r"^(\w+) +\d+$", snakemake(project, "-n", "writeup"), re.M)
    assert set(stats) == redone | {"total"}


def test_recorded_results_are_only_read_and_need_not_be_complete(project):
    config = yaml.safe_load((project / "config.yaml").read_text())
    config["experiments"]["end_to_end"]["smoke"]["longer"] = {**CELL, "context": [32]}
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    assert not planned(project, "writeup") & set(GRIDS)
    (project / "results/old-machine").mkdir()
    (project / "results/cpu/raw").rename(project / "results/old-machine/raw")
    arguments = ["writeup", "--config", "machine=old-machine", "scale=smoke"]
    assert not planned(project, *arguments) & set(GRIDS)
    snakemake(project, *arguments)
    assert (project / "results/old-machine/writeup.pdf").is_file()
    with (project / "results/old-machine/coverage.csv").open() as file:
        coverage = {row["grid"]: row for row in csv.DictReader(file) if row["experiment"] == "end_to_end"}
    assert coverage["eager"]["ok"] == coverage["eager"]["planned"] == "2"
    assert coverage["longer"]["not run"] == coverage["longer"]["planned"] == "1"


def test_recorded_results_count_as_measured_on_their_machine(finished, tmp_path):
    clone = copy_project(tmp_path)
    shutil.copytree(finished / "results/cpu/raw", clone / "results/cpu/raw")
    (clone / "results/cpu/raw/accumulation/all.csv").unlink()
    assert planned(clone) & set(GRIDS) == {"accumulation"}


def test_a_killed_run_goes_on(project):
    undisturbed = rows(project)
    raw = project / "results/cpu/raw"
    jobs = [raw / "accumulation/all.csv", raw / "autocast_dtypes/all.csv"]
    for job in jobs:
        job.unlink()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.Popen(
        [*SNAKEMAKE, "measurements"], cwd=project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while not any(job.exists() for job in jobs) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)  # into the next job
    run.send_signal(signal.SIGKILL)
    run.wait()
    (measured,) = filter(Path.exists, jobs)
    first = measured.stat().st_mtime_ns
    assert list((project / ".snakemake/locks").iterdir())
    snakemake(project, "measurements")
    assert rows(project) == undisturbed
    assert measured.stat().st_mtime_ns == first
    assert not list(raw.rglob(".*.csv.*"))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("strict: false", "strict: false\nspeed: fast", "unknown key 'speed' in the top level; allowed: machine,"),
        ("machine: auto", "machine: pdp-11", "machine is 'pdp-11', which has no recorded results"),
        ("- 16\n", "- 0\n", "experiments.end_to_end.smoke.eager: context is 0; allowed: greater than"),
        ("model:TransformerLM", "modell:TransformerLM", "no source file found for module 'cs336_systems.modell'"),
    ],
)
def test_bad_configuration_ends_in_a_sentence_before_anything_runs(tmp_path, old, new, sentence):
    folder = copy_project(tmp_path)
    edit(folder / "config.yaml", old, new)
    output = snakemake(folder, check=False)
    assert sentence in output
    assert "Traceback" not in output
    assert not (folder / "results").exists()


def test_lint_finds_nothing_but_conda(finished):
    findings = re.findall(r"^    \* (.*)$", snakemake(finished, "--lint", check=False), re.M)
    assert {finding for finding in findings if "conda" not in finding} == set()
