"""`snakemake --workflow-profile profiles/slurm` on a SLURM cluster, whose nodes are this host under other names.

SLURM itself, its executor and all launches are real. The GPUs are not: the scheduler hands out devices that are none,
so the driver and the benchmark are stand-ins where a plan has GPUs.
"""

import csv
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.record.rows import read_jobs
from tests.workflow.project import (
    GRIDS,
    SNAKEMAKE,
    add_toy_experiment,
    copy_project,
    copy_toy,
    edit,
    edit_yaml,
    environment,
    rows,
)

SLURM = Path(__file__).with_name("slurm.sh")
PROFILE = ["--workflow-profile", "profiles/slurm", "--slurm-status-command", "squeue"]
QUICK = ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]
RUN = shlex.join([*SNAKEMAKE, *PROFILE, *QUICK])
PYTHON = shlex.quote(sys.executable)
COLUMNS = "Comment:99,State:20,tres-alloc:99,tres-per-job:20,tres-per-node:20,TimeLimit:20"
PROCESSES = "processes:\n        - 1\n        - 2\n        - 4\n"
"""Of the toy experiment's jobs, as they stand in config.yaml."""
LIST = f"squeue --states=all --noheader --sort=i --Format={COLUMNS}"


def missing():
    """Why there can be no cluster here; empty if there can."""
    commands = [name for name in ("slurmctld", "slurmd", "sbatch", "unshare", "setpriv") if not shutil.which(name)]
    if commands:
        return f"needs {', '.join(commands)}: apt install slurmctld slurmd slurm-client"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "needs Snakemake's executor: pip install -e '.[slurm]'"
    if subprocess.run(["unshare", "--mount", "--pid", "--uts", "--fork", "true"], capture_output=True).returncode:
        return "may not make namespaces: needs root"
    return ""


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.workflow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def on_cluster(folder, script, gpus=0):
    """Run a script on the login node of a new cluster, which sees no GPU; its output."""
    done = subprocess.run(
        [SLURM, folder.with_name("slurm"), "bash", "-uc", script], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment(folder, gpus) | {"CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def submitted(printed):
    """The requests and outcomes of jobs, as LIST prints them: by rule and wildcards, in order of submission."""
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if line.startswith("rule_")]


def nodes(folder, **keys):
    edit_yaml(folder / "profiles/slurm/nodes.yaml", **keys)


@pytest.fixture
def toy(tmp_path):
    """A project of the toy experiment alone; its benchmark and the driver are stand-ins."""
    return copy_toy(tmp_path / "project", on_gpus=True)


def test_gpus_are_asked_from_the_scheduler_and_no_launch_spans_nodes(toy):
    nodes(toy, machine="4 x NVIDIA H200")
    edit(toy / "config.yaml", PROCESSES, "processes: [1, 4, 6]\n")
    machine = f"{PYTHON} -m cs336_systems.record.machine"
    coverage = "results/nvidia-h200/coverage.csv"
    printed = on_cluster(
        toy,
        f"{machine} && srun --gpus=4 --nodes=1 {machine} && {RUN} measurements && {RUN} {coverage} && {LIST}"
        f" && ! {RUN} -n results/nvidia-h200/raw/ping/all-6_processes.csv",
        gpus=4,
    )
    assert printed.splitlines()[:2] == ["cpu", "4 x NVIDIA H200"]
    done, hour = "COMPLETED", "1:00:00"
    node = "cpu=8,mem=64G,node=1,billing=8"
    assert sorted(submitted(printed)) == [
        ["rule_measure_wildcards_ping_all-1_processes", done, node, "gres:gpu:1", "N/A", hour],
        ["rule_measure_wildcards_ping_all-4_processes", done, node, "gres:gpu:4", "N/A", hour],
    ]
    assert len({row[1:4] for row in rows(toy / "results/nvidia-h200/raw")}) == 2 * 2  # cells: two sizes of message
    (ping,) = (line for line in (toy / coverage).read_text().splitlines() if line.startswith("ping,"))
    assert ping == "ping,all,6,4,0,0,0,0,2,0"
    assert "Error: it needs 6 GPUs, but 4 are visible\n" in printed


def test_jobs_that_fail_or_are_killed_are_named_and_run_again(toy):
    edit(toy / "config.yaml", PROCESSES, "processes: [1, 2]\n")
    nodes(toy, machine="4 x NVIDIA A100")
    wrong = on_cluster(toy, f"! {RUN} results/nvidia-a100/raw/ping/all-1_processes.csv", gpus=4)
    assert "planned for nvidia-a100, but this is nvidia-h200; see the key machine" in wrong
    assert not list(toy.rglob("raw/ping/*.csv"))

    nodes(toy, machine="4 x NVIDIA H200")
    kill = "until squeue --noheader --states=running --format=%i | grep . >job; do sleep 0.2; done; scancel $(cat job)"
    printed = on_cluster(
        toy, f"{RUN} measurements >first 2>&1 & {kill}; wait %1; echo status $?; cat first; {RUN} measurements; {LIST}",
        gpus=4,
    )  # fmt: skip
    assert "status 1" in printed
    assert "SLURM status is: 'CANCELLED'" in printed
    states = [state for _, state, *_ in submitted(printed)]
    assert states == ["CANCELLED", "COMPLETED", "COMPLETED"]
    assert len(list((toy / "results/nvidia-h200/raw/ping").glob("*.csv"))) == 2


def test_ranks_on_two_nodes_reach_each_other(tmp_path, toy):
    launch = "srun --nodes=2 --ntasks=2 rules/torchrun.sh --nproc-per-node=2 -m cs336_systems.benchmarks all_reduce"
    options = "--backend gloo --processes 4 --megabytes 1 --steps 2 --output ../rows.csv"
    on_cluster(toy, f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; {launch} {options}")
    measured = {row.metric: row for row in read_jobs(AllReduce, [tmp_path / "rows.csv"])}
    assert measured["wrong_numbers"].mean == 0
    assert (measured["time"].processes, measured["time"].nodes) == (4, 2)


def test_cpu_nodes_make_the_whole_report(tmp_path):
    folder = copy_project(tmp_path / "project", GRIDS)
    add_toy_experiment(folder)
    nodes(folder, machine="cpu")
    jobs = submitted(on_cluster(folder, f"{RUN}; {LIST}"))
    assert {state for _, state, *_ in jobs} == {"COMPLETED"}
    assert {gpus for *_, gpus, _, _ in jobs} == {"N/A"}
    assert (folder / "results/cpu/writeup.pdf").exists()
    with (folder / "results/cpu/coverage.csv").open() as file:
        assert all(line["planned"] == line["ok"] for line in csv.DictReader(file))
