"""`snakemake verify`: what is right is right, and what is wrong is wrong with its reason; and a class of students."""

import csv
import re

import pytest
import yaml

from cs336_systems.implementations import parse
from scripts.verify import CANNOT_BE_LOADED, RIGHT, WRONG, verify
from tests.support.made_once import made_once
from tests.workflow.project import NO_CELLS, copy_project, edit, edit_yaml, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1200)]  # some twenty launches of several ranks

SHOWN = ("attention", "sharded_optimizer")


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    def make(folder):
        copy_project(folder, NO_CELLS, sections=())
        # Wrappers are verified below, in a class.
        named = yaml.safe_load((folder / "examples/config.yaml").read_text())["implementations"]
        edit_yaml(folder / "examples/config.yaml", implementations={name: named[name] for name in SHOWN})
        (folder / "printed.txt").write_text(snakemake(folder, "verify", "--configfile", "examples/config.yaml"))

    return made_once(tmp_path_factory, "verified", make)


def verdicts(project):
    with (project / "results/cpu/verify.csv").open() as file:
        return {(row["student"], row["family"], row["implementation"]): row for row in csv.DictReader(file)}


REASONS = {
    "padded": r"\(\(3, 77, 16\), fp32, all keys\): its o is off from that of attention by 0\.\d",
    "evenly": r"fewer parameters than ranks, .*: after step 1 only \[3, 5\] is off from one process's by 1 of its way",
}


@pytest.mark.slow
def test_each_example_gets_the_verdict_that_it_is_for(verified):
    found = {name: row for (_, _, name), row in verdicts(verified).items()}
    right = {"my-flash", "my-optimizer"}
    assert {name for name, row in found.items() if row["verdict"] == RIGHT} == right
    assert {name for name, row in found.items() if row["verdict"] == WRONG} == set(REASONS)
    page = (verified / "results/cpu/verify.html").read_text()
    for name, reason in REASONS.items():
        assert re.search(reason, found[name]["reason"])
        assert f"{name}: <span" in page
    last = "2 of 4 implementations are right: attention my-flash, sharded_optimizer my-optimizer;"
    assert f"{last} page: results/cpu/verify.html\n" in (verified / "printed.txt").read_text()


@pytest.mark.slow
def test_a_class_gets_a_table(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    snakemake(folder, "verify", "--config", "students=examples/class")
    found = verdicts(folder)
    assert {key: row["verdict"] for key, row in found.items() if row["implementation"]} == {
        ("ada", "attention", "ada"): RIGHT,
        ("alan", "attention", "alan"): CANNOT_BE_LOADED,
        ("grace", "attention", "grace"): RIGHT,
        ("grace", "data_parallel", "grace"): WRONG,
    }
    assert found["alan", "fsdp", ""]["verdict"] == "not there"
    assert found["grace", "attention", "grace"]["reason"] == "it does not support 16 of 24 cases"
    table = (folder / "results/cpu/verify.html").read_text()
    assert "flash has no &#39;FlashAttention&#39;" in table
    assert "2 times as large, as a sum over ranks is" in table
    assert {path.stem for path in (folder / "results/cpu/verify").iterdir()} == {"ada", "alan", "grace"}


def test_strictly_a_wrong_one_fails_the_run_that_leaves_its_page(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    edit(folder / "examples/class/alan/implementations.yaml", "attention:", "atention:")
    (folder / "class").mkdir()
    (folder / "examples/class/alan").rename(folder / "class/alan")
    printed = snakemake(folder, "verify", "--config", "students=class", "strict=true", check=False)
    assert "0 of 4 implementations are right: none; page: results/cpu/verify.html; and strict is true" in printed
    sentence = "implementations.yaml: unknown key &#39;atention&#39;; allowed: attention, data_parallel,"
    assert sentence in (folder / "results/cpu/verify.html").read_text()


def test_there_has_to_be_something_to_verify(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    assert "implementations names none; allowed: at least one, or" in snakemake(folder, "verify", check=False)
    printed = snakemake(folder, "verify", "--config", "students=nowhere", check=False)
    assert "--config: students is 'nowhere'; allowed: none, or a folder with one for each student" in printed
    assert "Traceback" not in printed


BAD = {
    "import os, signal\ndef f(q, k, v, is_causal):\n    os.kill(os.getpid(), signal.SIGSEGV)\n": (
        WRONG,
        r"Output and gradients .*: its process was ended by SIGSEGV",
    ),
    "import os\ndef f(q, k, v, is_causal):\n    os._exit(0)\n": (WRONG, r"its process ended with exit status 0"),
    "import time\ndef f(q, k, v, is_causal):\n    time.sleep(300)\n": (WRONG, r"its process did not end within 30 s"),
    "def f(q, k, v, is_causal):\n    return q.view(3)\n": (WRONG, r"it raises RuntimeError: shape '\[3\]' is invalid"),
}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, marks=() if name == "crash" else pytest.mark.slow, id=name)
        for name, code in zip(["crash", "exit", "hang", "exception"], BAD, strict=True)
    ],
)
def test_what_ends_its_process_costs_only_itself(tmp_path, code):
    (tmp_path / "mine.py").write_text(code)
    with (tmp_path / "log").open("w") as log:
        found = verify("attention", parse("it=mine:f"), tmp_path, log, limit_s=30)
    verdict, reason = BAD[code]
    assert found.verdict == verdict
    assert re.search(reason, found.reason)


@pytest.mark.slow
def test_a_student_has_to_hand_in_code(tmp_path):
    with (tmp_path / "log").open("w") as log:
        found = verify("attention", parse("it=cs336_systems.attention:flash_attention"), tmp_path, log, limit_s=60)
    assert found.verdict == CANNOT_BE_LOADED
    assert f"allowed: a module in {tmp_path}" in found.reason
