"""`snakemake verify`: what is right is right, and what is wrong is wrong with its reason; and a class of students."""

import csv
import shutil

import pytest
import yaml

from cs336_systems.verify.verdict import CANNOT_BE_LOADED, CRASHED, RIGHT, UNSUPPORTED, WRONG
from tests.workflow.project import NO_CELLS, copy_project, edit, edit_yaml, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]


def verdicts(project):
    with (project / "results/cpu/verify.csv").open() as file:
        return {(row["student"], row["family"], row["implementation"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_each_example_gets_the_verdict_that_it_is_for(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    edit_yaml(
        folder / "examples/config.yaml",
        implementations={"adapters": "examples/class/emmy"}
        | yaml.safe_load((folder / "examples/config.yaml").read_text())["implementations"],
    )
    printed = snakemake(folder, "verify", "--configfile", "examples/config.yaml")
    assert "; page: results/cpu/verify.html\n" in printed
    rows = {name: row for (_, _, name), row in verdicts(folder).items() if name}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        **dict.fromkeys(("my-flash", "my-ddp", "my-optimizer", "my-fsdp", "evenly", "even-rows"), RIGHT),
        **dict.fromkeys(("padded", "last-bucket-lost"), WRONG),
        **{"adapter-pytorch": RIGHT, "adapter-triton": UNSUPPORTED, "adapter-ddp": RIGHT, "adapter-fsdp": WRONG},
    }
    assert rows["my-fsdp"]["failed"] == rows["my-optimizer"]["failed"] == "0"
    assert rows["evenly"]["handout"] == rows["even-rows"]["handout"] == "2 of 2"
    assert int(rows["evenly"]["failed"]) > 0 < int(rows["even-rows"]["failed"])  # where ranks do not divide
    assert "last-bucket-lost: <span" in (folder / "results/cpu/verify.html").read_text()


@pytest.mark.slow
def test_a_class_gets_a_table_and_strictly_a_wrong_one_fails_the_run(tmp_path):
    folder = copy_project(tmp_path, NO_CELLS, sections=())
    students = folder / "examples/class"
    shutil.copytree(students / "alan", students / "bob")
    edit(students / "bob/implementations.yaml", "attention:", "atention:")
    shutil.copytree(students / "ada", students / "eve")
    (students / "eve/flash.py").write_text("import os\ndef attention(q, k, v, is_causal):\n    os._exit(0)\n")
    (students / "flo/src").mkdir(parents=True)
    printed = snakemake(folder, "verify", "--config", "students=examples/class", "strict=true", check=False)
    assert "; page: results/cpu/verify.html; and strict is true" in printed
    rows = verdicts(folder)
    assert {key: row["verdict"] for key, row in rows.items() if row["implementation"]} == {
        ("ada", "attention", "ada"): RIGHT,
        ("alan", "attention", "alan"): CANNOT_BE_LOADED,
        ("emmy", "attention", "adapter-pytorch"): RIGHT,
        ("emmy", "attention", "adapter-triton"): UNSUPPORTED,
        ("emmy", "data_parallel", "adapter-ddp"): RIGHT,
        ("emmy", "fsdp", "adapter-fsdp"): WRONG,
        ("eve", "attention", "ada"): CRASHED,
        ("grace", "attention", "grace"): RIGHT,
        ("grace", "data_parallel", "grace"): WRONG,
    }
    assert rows["alan", "sharded_optimizer", ""]["verdict"] == "not there"
    assert rows["emmy", "data_parallel", "adapter-ddp"]["handout"] == "4 of 4"
    table = (folder / "results/cpu/verify.html").read_text()
    assert "flash has no &#39;FlashAttention&#39;" in table
    assert "2 times as large as the mean over ranks, as a sum over ranks is" in table
    assert "implementations.yaml: unknown key &#39;atention&#39;; allowed: attention, data_parallel," in table
    assert "there is neither an implementations.yaml nor a tests/adapters.py" in table
    assert "<th>sharded_optimizer</th>" not in table  # nobody has one
    assert {path.stem for path in (folder / "results/cpu/verify").iterdir()} == {
        path.name for path in students.iterdir()
    }
