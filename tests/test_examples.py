"""The example that measures steps on several GPUs, at a size for two CPUs."""

import csv
import subprocess
import sys

import pytest

from tests.samples import ROOT


@pytest.mark.slow
def test_headlines_measure_every_contender():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--size", "tiny", "--rounds", "1", "--steps", "2"]
    command = [*launcher, "examples/headlines.py", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert {row["part"] for row in rows} == {"bf16", "sharded", "fp32"}
    missing = [row["contender"] for row in rows if not row["median_ms"]]
    assert missing == ["fully_shard, symmetric memory"], "which needs GPUs"
    for row in rows:
        if row["contender"] != missing[0]:
            assert row["n"] == "2"
            assert float(row["p20_ms"]) <= float(row["median_ms"]) <= float(row["p80_ms"])
