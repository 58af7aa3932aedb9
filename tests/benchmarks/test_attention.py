"""The experiment on plain attention."""

import pytest
import torch

from cs336_systems.experiments.attention import Attention
from cs336_systems.record.rows import read_jobs


@pytest.mark.gpu
def test_a_cell_out_of_gpu_memory_is_a_row_and_frees_what_it_held(command, tmp_path):
    output = tmp_path / "rows.csv"
    arguments = ["--sequence", "64", "2000000", "128", "--d", "16", "--steps", "2", "--device", "cuda"]
    command("attention", *arguments, "--output", str(output))
    outcomes = {row.sequence: row.status for row in read_jobs(Attention, [output]) if row.metric in ("cell", "forward")}
    assert outcomes == {64: "ok", 2_000_000: "oom", 128: "ok"}
    # Each input of the lost cell alone takes a gigabyte; cuBLAS keeps its workspaces.
    assert torch.cuda.memory_allocated() < 2**28
