"""The command: its exit status, and one sentence for what it cannot compare."""

import csv
import json
import re
import shutil

import pytest

from cs336_systems.compare.__main__ import main
from tests.support.planted_runs import copy_of, scaled

JOB = "flash/leaderboard"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two unchanged results, and one whose forward and backward passes take longer."""
    monkeypatch.chdir(tmp_path)
    copy_of(JOB, tmp_path / "results/one")
    copy_of(JOB, tmp_path / "results/two")
    change = {"forward_backward": 1.2}
    copy_of(JOB, tmp_path / "slow", lambda row: scaled(row, change[row.metric]) if row.metric in change else row)
    return tmp_path


def test_a_slower_time_fails_and_is_named(folders, capsys):
    assert main(["one", "two", "--fail-if-slower", "5%"]) == 0
    assert main(["one", "slow", "--fail-if-slower", "25%"]) == 0
    capsys.readouterr()
    assert main(["one", "slow", "--fail-if-slower", "5%"]) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[1].endswith("slower by 5% or more:")
    assert all("forward_backward" in line for line in error[2:])


def test_everything_is_written_for_programs(folders):
    arguments = ["one", "slow", "--json", "out/all.json", "--csv", "out/all.csv", "--price", "3.5,2"]
    assert main(arguments) == 0
    written = json.loads((folders / "out/all.json").read_text())
    lines = list(csv.DictReader((folders / "out/all.csv").open()))
    assert len(written["cells"]) == len(lines) == sum(written["counts"].values())
    assert {line["verdict"] for line in lines} == {cell["verdict"] for cell in written["cells"]}
    for cell in written["cells"]:
        assert cell["low"] <= cell["ratio"] <= cell["high"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one", "one"], "one and one are the same folder, results/one/raw; allowed: two folders"),
        (["one", "three"], "no results are named 'three'; allowed: a folder with raw/EXPERIMENT/JOB.csv, or"),
        (["one", "."], ". has no results; allowed: a folder with raw/EXPERIMENT/JOB.csv"),
        (["slow/raw/flash", "one"], "slow/raw/flash has no results; allowed: a folder with raw/EXPERIMENT/JOB.csv"),
        (["one", "two", "--price", "0"], "argument --price: '0'; allowed: a price per GPU-hour above 0, such as"),
        (["one", "two", "--price=-1,3"], "argument --price: '-1,3'; allowed: a price per GPU-hour above 0, such"),
        (["one", "two", "--fail-if-slower", "120%"], "'120%'; allowed: a percentage above 0% and below 100%, such as"),
        (["one", "two", "--fail-if-slower", "0.05"], "'0.05'; allowed: a percentage above 0% and below 100%, such as"),
        (["one", "two", "--margin", "0%"], "argument --margin: '0%'; allowed: a percentage above 0% and below 100%"),
        (["one"], "the following arguments are required: B"),
    ],
)
def test_bad_input_is_one_sentence(folders, capsys, arguments, sentence):
    try:
        status = main(arguments)
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith("cs336-systems compare: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_folder_that_has_only_logs_is_not_meant(folders, capsys):
    (folders / "recorded/two/logs").mkdir(parents=True)
    assert main(["two", "slow"]) != 2, capsys.readouterr().err


def test_damaged_and_ambiguous_folders_are_refused(folders, capsys):
    path = folders / "slow/raw/flash/leaderboard.csv"
    path.write_bytes(path.read_bytes()[:-200])
    copy_of("flash/tiled", folders / "mixed")
    copy_of(JOB, folders / "mixed", lambda row: row.model_copy(update={"gpu": "NVIDIA L4"}))
    shutil.copytree(folders / "results/two", folders / "recorded/two")
    for name, sentence in (
        ("slow", "slow/raw/flash/leaderboard.csv: changed since it was written: its SHA-256 is"),
        ("mixed", "mixed: has rows of nvidia-l4 and nvidia-h200; allowed: one GPU model"),
        ("two", "two is the label of results/two and recorded/two; allowed: the path of one"),
        ("rtx4090", "no results are named 'rtx4090'; allowed:"),
    ):
        assert main(["one", name]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


def test_a_gpus_name_will_do(folders):
    shutil.copytree(folders / "results/one", folders / "recorded/nvidia-h200")
    assert main(["H200", "two"]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--csv", "results/one/raw/flash/leaderboard.csv"], "raw/flash/leaderboard.csv, which is in the input "),
        (
            ["--json", "results/two/raw/flash/new.json"],
            "json is results/two/raw/flash/new.json, which is in the input ",
        ),
        (["--json", "same", "--csv", "./same"], "json and csv are both same; allowed: different files"),
        (["--json", "slow"], "slow cannot be written: Is a directory"),
        (
            ["--on", "gpu"],
            "one and two are not two files; allowed: two result folders, or two files, each a JSON file of nvbench",
        ),
    ],
)
def test_what_is_read_is_not_written_over(folders, capsys, options, sentence):
    before = {path: path.read_bytes() for path in folders.rglob("*") if path.is_file()}
    assert main(["one", "two", *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in folders.rglob("*") if path.is_file()} == before


def test_machines_have_their_names_and_steps_come_first(capsys):
    assert main(["nvidia-h200", "nvidia-h100-80gb-hbm3", "--price", "3.8,2.5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("nvidia-h100-80gb-hbm3 compared with nvidia-h200; ")
    slower = text.split("\nslower in nvidia-h100-80gb-hbm3 (")[1].splitlines()[1:]
    assert "bound" in slower[0]
    assert ": step" in slower[1]
    assert "per million tokens" in slower[1]
    ratios = {
        bound: float(ratio)
        for bound, ratio in re.findall(r"^  (\w+)-bound: median ratio ([\d.]+);", text, re.MULTILINE)
    }
    assert 1 < ratios["matmul"] < ratios["memory"] < 4.8 / 3.35  # the ratio of the bandwidths
