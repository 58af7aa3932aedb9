"""CONTRIBUTING's steps, from end to end: an experiment of two processes, a figure, a section, a tile and a check."""

import csv
import re

import pytest

from tests.samples import pdf_text, squeeze
from tests.support.made_once import made_once
from tests.workflow.project import NO_CELLS, TOY, add_toy_experiment, copy_project, python, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    def make(folder):
        add_toy_experiment(copy_project(folder, NO_CELLS, sections=()))
        snakemake(folder)

    return made_once(tmp_path_factory, "toy", make)


def test_it_is_measured_by_as_many_processes_as_it_asks_for(project):
    sums = {}
    for path in (project / "results/cpu/raw/ping").glob("*.csv"):
        with path.open() as file:
            sums |= {
                (int(row["processes"]), int(row["numbers"])): float(row["mean"])
                for row in csv.DictReader(file)
                if row["metric"] == "sum"
            }
    assert sums == {(1, 10): 1, (1, 1000): 1, (2, 10): 2, (2, 1000): 2}


@pytest.mark.parametrize(
    "text",
    [
        "A part with toys",
        "toy_problem",
        "Does a ping come back from every process?",
        "Time of an all-reduce against the size of its message",
        "4 pings came back",
        "torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.ping --processes 2 --numbers 10 1000",
    ],
)
def test_all_of_it_is_in_the_report(project, text):
    assert squeeze(text) in pdf_text(project / "results/cpu/writeup.pdf")


def test_its_check_is_made(project):
    assert "every process was counted once by a ping,passed,4 cells" in (project / "results/cpu/checks.csv").read_text()


def test_its_figure_is_drawn(project):
    assert "2 processes" in (project / "results/cpu/figures/ping_time.svg").read_text()


def test_its_steps_are_few():
    # The others are lists that it is added to: config.yaml, report/contents.yaml, metrics and effects of parameters.
    assert sum(path.suffix in (".py", ".j2") for path in TOY.rglob("*")) + 4 <= 12


def test_the_projects_own_tests_know_it(project):
    python(project, "-m", "scripts.data_dictionary")
    which = ["test_experiments", "test_plan", "benchmarks/test_parameters", "benchmarks/test_command_line"]
    modules = [f"tests/{name}.py" for name in (*which, "scripts/test_data_dictionary", "test_ping")]
    printed = python(
        project, "-m", "pytest", "-q", "-n0", *modules, "-k", "ping or up_to_date or module_that_measures_it"
    )
    assert re.search(r"^1\d passed", printed, re.M), printed
