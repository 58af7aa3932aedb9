"""The figures of the title page: which of two is the headline, and which way round it is."""

from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.answers import (
    benchmarking_mixed_precision,
    beyond_nccl,
    flash_benchmarking,
    fsdp,
    gradient_checkpointing,
    torch_compile,
)
from tests.prose import GPU, end_to_end, plain, step, table, took, training
from tests.prose.test_attention import BOARD, flash_tables, passes


def told(section, tables):
    """The tiles of a section: number and meaning."""
    return [(plain(tile.number), plain(tile.meaning)) for tile in section.tiles(section.answers(tables))]


def test_bf16_is_that_of_the_largest_model():
    # Forward and backward: 30 and 20 ms, 120 and 30 ms.
    cells = {("nano", "fp32"): (10.0, 20.0), ("nano", "bf16"): (10.0, 10.0)}
    cells |= {("micro", "fp32"): (40.0, 80.0), ("micro", "bf16"): (10.0, 20.0)}
    measured = {EndToEnd(size=size, precision=name): step(*both, 1.0) for (size, name), both in cells.items()}
    ((number, meaning),) = told(benchmarking_mixed_precision, end_to_end(GPU, measured))
    assert number == "4.00×"
    assert "of micro, eager, at context 512 (1.50× for nano)" in meaning


def test_compiling_at_its_best():
    # Forward 10 and 5 ms; the whole step 30 and 25 ms.
    cells = {EndToEnd(size="nano"): step(10.0, 10.0, 10.0), EndToEnd(size="nano", compiled=True): step(5.0, 10.0, 10.0)}
    ((number, meaning),) = told(torch_compile, end_to_end(GPU, cells))
    assert number == "2.00×"
    assert "(the smallest: 1.20×, nano, fp32" in meaning


def test_checkpointing_at_its_best():
    # 8 and 2 GiB, steps of 10 and 13 ms; with flash attention 4 and 2 GiB.
    measured = {("plain", 0): (8192.0, 10.0), ("plain", 2): (2048.0, 13.0)}
    measured |= {("flash", 0): (4096.0, 10.0), ("flash", 2): (2048.0, 11.0)}
    cells = {
        Checkpointing(size="micro", attention=name, segment=segment): {"peak_memory": peak, "step": [ms] * 3}
        for (name, segment), (peak, ms) in measured.items()
    }
    ((number, meaning),) = told(gradient_checkpointing, {"checkpointing": table("checkpointing", GPU, cells)})
    assert number == "4.00×"
    assert "(plain attention, at 1.30× the step time)" in meaning


def test_sharded_training_at_its_worst_and_copy_engines_on_two_gpus():
    cells = [{"fsdp": took(100.0), "fully_shard": took(theirs)} for theirs in (120.0, 150.0)]
    ((number, meaning),) = told(fsdp, {"fsdp": training(FullyShardedTraining, ("wrapper",), cells)})
    assert number == "1.20×"
    assert "(at best 1.50×)" in meaning
    cells = [{"none": took(50.0), "ddp 25": took(theirs), "peer_memory": took(100.0)} for theirs in (120.0, 200.0)]
    tables = {"data_parallel": training(DataParallelTraining, ("wrapper", "bucket_mb"), cells)}
    ((number, meaning),) = told(beyond_nccl, tables)
    assert number == "1.20×"
    assert ": 2 GPUs, fp32" in meaning


def test_attention_on_the_leaderboard_and_in_a_model():
    times = {("triton", 64): 6.0, ("sdpa_flash", 64): 9.0, ("triton", 128): 20.0, ("sdpa_flash", 128): 60.0}
    board = {Flash(**BOARD, d=d, implementation=name): passes(ms / 3, ms / 1.5) for (name, d), ms in times.items()}
    steps = {EndToEnd(size="nano", attention=name): step(ms, ms, ms) for name, ms in (("plain", 20.0), ("flash", 10.0))}
    (board_ms, against), (gain, _) = told(flash_benchmarking, flash_tables(board, steps=steps))
    assert board_ms.startswith("6.0")
    assert "1.50× as fast as SDPA flash" in against
    assert gain == "2.00×"
