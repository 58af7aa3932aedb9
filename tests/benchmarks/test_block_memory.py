"""Memory that a block keeps, measured on a CPU against the closed form, and the record's detail columns."""

import pytest
import torch

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks import block_memory
from cs336_systems.experiments.block_memory import BlockMemory
from cs336_systems.record.rows import read_jobs
from cs336_systems.sizes import parse_size

SIZE = "odd:d_model=30,d_ff=44,num_layers=9,num_heads=3"  # of which one block is measured


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["plain", "flash"])
def test_a_block_is_measured_by_operator_and_in_all(command, tmp_path, precision, attention):
    output = tmp_path / "rows.csv"
    arguments = ["--size", SIZE, "--context", "11", "--batch-size", "3"]
    arguments += ["--precision", precision, "--attention", attention]
    command("block_memory", *arguments, "--device", "cpu", "--output", str(output))
    rows = read_jobs(BlockMemory, [output])
    block = BlockActivations(
        shape=parse_size(SIZE), batch_size=3, context=11, precision=precision, attention=attention, on_gpu=False
    )
    (activations,) = [row.mean * MIB for row in rows if row.metric == "saved_activations"]
    assert activations == block.saved_bytes
    assert sum(row.mean * MIB for row in rows if row.metric == "saved") == pytest.approx(activations)
    saved = {(row.range, row.operator, row.tensor) for row in rows if row.metric == "saved"}
    assert saved == {(tensor.range, tensor.operator, tensor.tensor) for tensor in block.saved()}
    metrics = {row.metric: row for row in rows if row.metric != "saved"}
    assert metrics["saved_weight_copies"].mean * MIB == block.weight_copies
    assert metrics["parameter_gradients"].mean * MIB == 4 * (4 * 30**2 + 3 * 30 * 44 + 2 * 30)
    assert metrics["input_gradient"].mean * MIB == 4 * 3 * 11 * 30
    assert metrics["left_by_forward"].status == metrics["left_by_backward"].status == "skipped"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["plain", "flash"])
def test_the_allocator_agrees_with_the_storages(precision, attention):
    cell = BlockMemory(size="medium", context=256, precision=precision, attention=attention)
    metrics = {row.metric: row.mean for row in block_memory.measure(cell, torch.device("cuda"))}
    saved = metrics["saved_activations"] + metrics["saved_weight_copies"]
    assert metrics["left_by_forward"] == pytest.approx(saved, rel=0.01)
    gradients = metrics["parameter_gradients"] + metrics["input_gradient"]
    assert metrics["left_by_backward"] == pytest.approx(gradients, rel=0.01)
