"""`snakemake verify`: what is right is right, and what is wrong is wrong with its reason; and a class of students."""

import csv
import re
import shutil

import pytest
import yaml

from cs336_systems.implementations import parse
from scripts.stages.verify import CANNOT_BE_LOADED, RIGHT, WRONG, verify
from tests.workflow.project import NO_CELLS, copy_project, edit, edit_yaml, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1200)]  # some twenty launches of several ranks

FAMILY = "sharded_optimizer"
"""Of the examples. Attention and wrappers are verified in a class, and with code that ends its process."""


def verdicts(project):
    with (project / "results/cpu/verify.csv").open() as file:
        return {(row["student"], row["family"], row["implementation"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_each_example_gets_the_verdict_that_it_is_for(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    examples = folder / "examples/config.yaml"
    named = yaml.safe_load(examples.read_text())["implementations"][FAMILY]
    edit_yaml(examples, implementations={FAMILY: named})
    printed = snakemake(folder, "verify", "--configfile", "examples/config.yaml")
    assert (
        "1 of 2 implementations are right: sharded_optimizer my-optimizer; page: results/cpu/verify.html\n" in printed
    )
    found = {name: row for (_, _, name), row in verdicts(folder).items()}
    assert {name: row["verdict"] for name, row in found.items() if name} == {"my-optimizer": RIGHT, "evenly": WRONG}
    reason = r"fewer parameters than ranks, .*: after step 1 only \[3, 5\] is off from one process's by 1 of its way"
    assert re.search(reason, found["evenly"]["reason"])
    assert "evenly: <span" in (folder / "results/cpu/verify.html").read_text()


@pytest.mark.slow
def test_a_class_gets_a_table_and_strictly_a_wrong_one_fails_the_run(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    shutil.copytree(folder / "examples/class/alan", folder / "examples/class/bob")
    edit(folder / "examples/class/bob/implementations.yaml", "attention:", "atention:")
    (folder / "examples/class/eve").mkdir()
    theirs = "attention:\n  eve: cs336_systems.attention:flash_attention\n"
    (folder / "examples/class/eve/implementations.yaml").write_text(theirs)
    printed = snakemake(folder, "verify", "--config", "students=examples/class", "strict=true", check=False)
    assert "; page: results/cpu/verify.html; and strict is true" in printed
    found = verdicts(folder)
    assert {key: row["verdict"] for key, row in found.items() if row["implementation"]} == {
        ("ada", "attention", "ada"): RIGHT,
        ("alan", "attention", "alan"): CANNOT_BE_LOADED,
        ("eve", "attention", "eve"): CANNOT_BE_LOADED,
        ("grace", "attention", "grace"): RIGHT,
        ("grace", "data_parallel", "grace"): WRONG,
    }
    assert found["alan", "fsdp", ""]["verdict"] == "not there"
    assert f"allowed: a module in {folder / 'examples/class/eve'}" in found["eve", "attention", "eve"]["reason"]
    assert found["grace", "attention", "grace"]["reason"] == "it does not support 16 of 24 cases"
    table = (folder / "results/cpu/verify.html").read_text()
    assert "flash has no &#39;FlashAttention&#39;" in table
    assert "2 times as large, as a sum over ranks is" in table
    assert "implementations.yaml: unknown key &#39;atention&#39;; allowed: attention, data_parallel," in table
    students = {"ada", "alan", "bob", "eve", "grace"}
    assert {path.stem for path in (folder / "results/cpu/verify").iterdir()} == students


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
    "import time\ndef f(q, k, v, is_causal):\n    time.sleep(300)\n": (WRONG, r"its process did not end within 20 s"),
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
        found = verify("attention", parse("it=mine:f"), tmp_path, log, limit_s=20 if "sleep" in code else 60)
    verdict, reason = BAD[code]
    assert found.verdict == verdict
    assert re.search(reason, found.reason)
