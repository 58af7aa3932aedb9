"""`make clean` removes generated files, and no measurements or other files."""

import shutil
import subprocess

from tests.samples import ROOT

MADE = [
    ".venv/bin/python", ".snakemake/log", "report.html", "scripts/__pycache__/x.pyc", "cs336_systems.egg-info/PKG-INFO",
    "results/cpu/writeup.pdf", "results/cpu/tables/x.csv", "results/cpu/logs/x/a.log", "results/cpu/logs/plan.log",
    "results/cpu/raw/x/.a.csv.partial", "results/cpu/kept/x/a.jsonl", "results/cpu/correctness/test_x-1-2.txt",
    "results/recorded/nvidia-h200/writeup.pdf", "results/recorded/nvidia-h200/tables/x.csv",
    "results/quick/cpu/writeup.pdf", "results/cpu/verify.csv", "results/cpu/verify/x.html", "results/cpu/cpu.crate.zip",
]  # fmt: skip
MEASURED = [
    "recorded/nvidia-h200/raw/x/a.csv", "recorded/nvidia-h200/traces/step.json.gz", "results/cpu/raw/x/a.csv",
    "results/quick/cpu/raw/x/a.csv",
    "results/cpu/raw/x/a.csv.sha256", "results/cpu/traces/step.json.gz", "results/cpu/artifacts/snapshot.pickle",
]  # fmt: skip
OF_OTHERS = [
    "results/notes.txt", "results/cpu/thesis.tex", "results/cpu/tables/notes.txt", "results/cpu/figures/logo.png",
    "results/cpu/mine/tables/x.csv", "build/notes.txt", "other.egg-info/PKG-INFO", "scripts/__pycache__/notes.txt",
]  # fmt: skip
LINKED = ["tables/x.csv", "writeup.pdf"]


def test_clean_removes_what_runs_made_and_nothing_else(tmp_path):
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to("disk")
    for name in [*MADE, *MEASURED, *OF_OTHERS, *(f"elsewhere/{name}" for name in LINKED)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "results/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "results/quick/cpu/tables").symlink_to(tmp_path / "elsewhere/tables")
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "results").is_symlink()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    stay = {
        *(name.replace("results", "disk", 1) for name in (*MEASURED, *OF_OTHERS)),
        *(f"elsewhere/{x}" for x in LINKED),
    }
    assert left == {"Makefile", *stay}
    assert not (tmp_path / "results/recorded").exists()
