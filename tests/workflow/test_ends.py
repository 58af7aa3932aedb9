"""A distributed job that crashes, and a run that is killed: what was measured stays, no temporary file does."""

import csv
import signal

import psutil
import pytest
import yaml

from tests.workflow.project import NUMERIC_TEST, SNAKEMAKE, copy_toy, edit, edit_yaml, snakemake, start, wait_for

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

FATE = """
    # What befalls the second cell does not depend on the code, which stays the same.
    fate = Path("fate").read_text()
    torch.distributed.barrier()  # Rank 0 has kept the first cell when one crashes in the second.
    if cell.numbers == 1000 and fate == "crash":
        ctypes.string_at(0)
    if cell.numbers == 1000 and fate == "wait":
        Path(f"waits-{os.environ['RANK']}").touch()
        ctypes.PyDLL(None).sleep(1000)  # no other thread of Python runs meanwhile
    numbers ="""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one job of two processes and two cells; its temporary files go into a folder of their own."""
    folder = copy_toy(tmp_path / "project")
    (folder / "tests/test_ping.py").write_text(NUMERIC_TEST.format("True"))
    experiments = yaml.safe_load((folder / "config.yaml").read_text())["experiments"]
    grids = {"all": {"processes": [2], "numbers": [10, 1000]}}
    edit_yaml(folder / "config.yaml", experiments=experiments | {"ping": {"smoke": grids, "handout": grids}})
    edit(
        folder / "cs336_systems/benchmarks/ping.py",
        "import torch\n",
        "import ctypes\nimport os\nfrom pathlib import Path\nimport torch\n",
    )
    edit(folder / "cs336_systems/benchmarks/ping.py", "\n    numbers =", FATE)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return folder


def test_what_was_measured_stays_and_no_temporary_file_does(project, tmp_path):
    temporary = tmp_path / "tmp"
    (project / "fate").write_text("crash")
    printed = snakemake(project, "measurements", check=False)
    assert (
        "The job ended with exit status 1, in cell 2 (numbers=1000); a repeated run starts with that cell." in printed
    )
    assert "Fatal Python error: Segmentation fault" in printed
    (log,) = (project / "results/cpu/logs/ping").iterdir()
    assert not list(project.glob("results/cpu/raw/ping/*.csv"))
    assert list(temporary.iterdir()) == []

    (project / "fate").write_text("wait")
    run = start([*SNAKEMAKE, "measurements"], project)
    wait_for(lambda: len(list(project.glob("waits-*"))) == 2)
    family = psutil.Process(run.pid).children(recursive=True)
    assert list(temporary.glob("snakemake*/torchelastic_*"))
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert psutil.wait_procs(family, timeout=30)[1] == []

    (project / "fate").write_text("none")
    assert "Removed the lock of a run that was killed" in snakemake(project, "measurements")
    assert "Cells kept from an earlier launch: 1.\n" in log.read_text()
    (measured,) = project.glob("results/cpu/raw/ping/*.csv")
    with measured.open() as file:
        sums = {row["numbers"]: float(row["mean"]) for row in csv.DictReader(file) if row["metric"] == "sum"}
    assert sums == {"10": 2, "1000": 2}
    assert not list(project.glob("results/cpu/kept/ping/*"))
    assert list(temporary.iterdir()) == []
