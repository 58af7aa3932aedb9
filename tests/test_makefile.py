"""What `make clean` removes."""

import shutil
import subprocess

from tests.samples import ROOT

MADE = [
    ".venv/bin/python", ".snakemake/log", "report.html", "scripts/__pycache__/x.pyc", "results/cpu/writeup.pdf",
    "results/cpu/tables/x.csv", "results/cpu/logs/x/a.log", "results/cpu/raw/x/.a.csv.partial",
    "results/recorded/nvidia-h200/writeup.pdf", "results/recorded/nvidia-h200/tables/x.csv",
]  # fmt: skip
MEASURED = [
    "recorded/nvidia-h200/raw/x/a.csv", "recorded/nvidia-h200/traces/step.json.gz", "results/cpu/raw/x/a.csv",
    "results/cpu/raw/x/a.csv.sha256", "results/cpu/traces/step.json.gz", "results/cpu/artifacts/snapshot.pickle",
]  # fmt: skip


def test_clean_removes_what_runs_made_and_no_measurement(tmp_path):
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to("disk")
    for name in [*MADE, *MEASURED]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "results").is_symlink()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"Makefile", *(name.replace("results", "disk", 1) for name in MEASURED)}
