"""The package of examples in the pipeline: right ones are measured, wrong ones refused, and the report shows both."""

import csv
import re

import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.implementations import label
from tests.samples import pdf_text
from tests.support.made_once import made_once
from tests.workflow.project import NO_CELLS, NUMERIC_TEST, copy_project, replace_tests_of_instruments, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(1200)]

TRAINING = {
    "size": ["nano"],
    "context": [16],
    "vocab_size": [101],
    "rounds": [1],
    "warmup": [1],
    "steps": [2],
}
GRIDS = {
    **NO_CELLS,
    "flash": {"all": {"sequence": [77], "d": [16], "causal": [False, True], "implementation": ["plain", "tiled"]}},
    "fsdp": {"all": TRAINING},
}
SECTIONS = {"flash_benchmarking", "fsdp"}
RIGHT = {"flash": "my-flash", "fsdp": "my-fsdp"}
WRONG = {
    "flash": {"padded": r"not timed: its o is off from that of attention by 0\.\d"},
    "fsdp": {"even-rows": r"not timed: after 3 steps \S+ is off from one process's by [\d.]+ of its way"},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    def make(folder):
        copy_project(folder, GRIDS, SECTIONS)
        # The gate is tested elsewhere, and takes longer than all that is measured here.
        replace_tests_of_instruments(folder)
        for name in RIGHT:
            for test in EXPERIMENTS[name].numeric_tests:
                (folder / f"tests/{test.replace('.', '/')}.py").write_text(NUMERIC_TEST.format("True"))
        snakemake(folder, "--configfile", "examples/config.yaml")

    return made_once(tmp_path_factory, "examples", make)


def rows_of(project, experiment, name):
    """The measured rows of one implementation."""
    rows = []
    for path in (project / f"results/cpu/raw/{experiment}").glob("*.csv"):
        with path.open() as file:
            rows += list(csv.DictReader(file))
    columns = {"wrapper", "contender", "implementation"}
    return [row for row in rows if name in (label(row[key]) for key in columns & row.keys() if "," not in row[key])]


@pytest.mark.parametrize("experiment", RIGHT)
def test_right_ones_are_measured_and_wrong_ones_refused(project, experiment):
    own = rows_of(project, experiment, RIGHT[experiment])
    assert {"forward_backward" if experiment == "flash" else "step"} <= {row["metric"] for row in own}
    assert {row["status"] for row in own} <= {"ok", "skipped"}
    for name, reason in WRONG[experiment].items():
        rows = rows_of(project, experiment, name)
        refused = [row["message"] for row in rows if row["message"].startswith("not timed")]
        assert refused
        assert all(re.match(reason, message) for message in refused), refused
        if experiment != "flash":  # where it is right under a causal mask
            assert not [row for row in rows if row["status"] == "ok"]


@pytest.mark.parametrize("experiment", RIGHT)
def test_the_report_names_them(project, experiment):
    text = pdf_text(project / "results/cpu/writeup.pdf")
    assert [name for name in (RIGHT[experiment], *WRONG[experiment]) if name not in text] == []
