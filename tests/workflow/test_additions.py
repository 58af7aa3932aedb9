"""A project with CONTRIBUTING's toy experiment and the package of examples: added code in the whole pipeline.

The toy is an experiment of two processes with a figure, a section, a tile and a check. At first its code is incorrect:
it is not measured, and all else is. Right examples are measured, wrong ones refused, and the report shows both.
"""

import csv
import re
import shutil

import pytest

from cs336_systems.implementations import label
from tests.samples import pdf_text, squeeze
from tests.support.made_once import made_once
from tests.workflow.project import (
    NO_CELLS,
    NUMERIC_TEST,
    ROOT,
    add_toy_experiment,
    add_toy_parts,
    copy_files,
    copy_project,
    project_files,
    python,
    replace_numeric_tests,
    snakemake,
)

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(1200)]

GRIDS = {
    **NO_CELLS,
    "flash": {"all": {"sequence": [77], "d": [16], "causal": [False, True], "implementation": ["plain"]}},
}
RIGHT = ("my-flash", "adapter-pytorch")
WRONG, REASON = "padded", r"not timed: its output has a relative error of 0\.\d+ \(tolerance 0\.\d+\) against attention"
"""Wrong without a causal mask. Examples for several ranks are tested with the benchmarks."""
CONCERNED = (
    *("test_contenders", "test_documentation", "test_experiments", "test_plan", "measure/test_gpus"),
    *(f"benchmarks/test_{name}" for name in ("command_line", "end_to_end", "flash", "parameters", "training_ladder")),
    *(f"scripts/test_{name}" for name in ("checks", "contents", "docs", "figures", "planted_faults", "revisions")),
    "scripts/test_writeup",
)
"""The tests that CONTRIBUTING names for an experiment, a section, a figure, a check, a contender, a GPU, a rung and a
metric, but for those that train on several ranks."""
EXAMPLES = ("--configfile", "examples/config.yaml", "--config", "implementations={adapters: examples/my_systems}")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    def make(folder):
        add_toy_experiment(copy_project(folder, GRIDS, {"flash_benchmarking"}))
        conftest, of_the_toy = (folder / f"tests/{name}.py" for name in ("conftest", "test_ping"))
        kept = {path: path.read_text() for path in (conftest, of_the_toy)}
        # All tests that pass take longer than what is measured here.
        replace_numeric_tests(folder, "flash")
        of_the_toy.write_text(NUMERIC_TEST.format("False"))
        (folder / "incorrect.txt").write_text(snakemake(folder, "measurements", *EXAMPLES, check=False))
        (folder / "measured.txt").write_text(" ".join({path.parent.name for path in raw(folder).rglob("*.csv")}))
        of_the_toy.write_text(kept[of_the_toy])
        snakemake(folder, *EXAMPLES)
        conftest.write_text(kept[conftest])

    return made_once(tmp_path_factory, "additions", make)


@pytest.fixture(scope="module")
def text(project):
    return pdf_text(project / "results/cpu/writeup.pdf")


def raw(project):
    return project / "results/cpu/raw"


def rows_of(project, experiment):
    for path in (raw(project) / experiment).glob("*.csv"):
        with path.open() as file:
            yield from csv.DictReader(file)


def test_incorrect_code_is_not_measured_and_other_code_is(project):
    # The instruments are tested by whichever job comes first.
    sentence = r"The code is incorrect on this machine, so nothing was measured with it: (tests/test_instruments\.py )?"
    assert re.search(sentence + r"tests/test_ping\.py\n", (project / "incorrect.txt").read_text())
    assert set((project / "measured.txt").read_text().split()) == {"flash"}


def test_an_experiment_is_measured_by_as_many_processes_as_it_asks_for(project):
    sums = {
        (int(row["processes"]), int(row["numbers"])): float(row["mean"])
        for row in rows_of(project, "ping")
        if row["metric"] == "sum"
    }
    assert sums == {(1, 10): 1, (1, 1000): 1, (2, 10): 2, (2, 1000): 2}


def test_all_of_an_experiment_is_in_the_report(project, text):
    for words in (
        "A part with toys",
        "toy_problem",
        "Does a ping come back from every process?",
        "Time of an all-reduce against the size of its message",
        "4 pings came back",
    ):
        assert squeeze(words) in text, words
    assert "every process was counted once by a ping,passed,4 cells" in (project / "results/cpu/checks.csv").read_text()
    assert "2 processes" in (project / "results/cpu/figures/ping_time.svg").read_text()


def test_the_projects_own_tests_pass_with_all_additions(project, tmp_path):
    copy_files(ROOT, tmp_path, project_files())
    add_toy_parts(tmp_path)
    add_toy_experiment(tmp_path)
    shutil.copytree(raw(project) / "ping", raw(tmp_path) / "ping")
    python(tmp_path, "-m", "scripts.bundle.promote", "results/cpu", "tests/samples")
    python(tmp_path, "-m", "scripts.revisions", "accept", "*")
    python(tmp_path, "-m", "scripts.docs")
    files = [f"tests/{name}.py" for name in (*CONCERNED, "test_ping")]
    command = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files]
    # What additions leave as it is, and takes long.
    others = "ping or not (a_parameter_changes_what_runs or the_examples_run)"
    passed = python(tmp_path, *command, "-m", "not slow and not gpu", "-k", others)
    assert re.search(r"^\d+ passed", passed, re.M)


def test_right_examples_are_measured_and_wrong_ones_refused(project, text):
    rows: dict[str, list] = {}
    for row in rows_of(project, "flash"):
        rows.setdefault(label(row["implementation"]), []).append(row)
    for right in RIGHT:
        assert "forward_backward" in {row["metric"] for row in rows[right]}
        assert {row["status"] for row in rows[right]} <= {"ok", "skipped"}
    refused = [row["message"] for row in rows[WRONG] if row["message"].startswith("not timed")]
    assert refused
    assert all(re.match(REASON, message) for message in refused), refused
    assert [name for name in (*RIGHT, WRONG) if name not in text] == []
