"""Record the memory of one training step of a tiny model, for the tests of the replay that run without a GPU.

Launch, on a machine with a GPU: python -m tests.support.record_memory tests/data/memory-bf16.json
"""

import sys
from pathlib import Path

import torch
from pydantic import TypeAdapter

from cs336_systems.benchmarks.end_to_end import build_step
from cs336_systems.benchmarks.memory_profile import record
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.memory_recording import Recording

CELL = EndToEnd(
    size="tiny:d_model=96,d_ff=260,num_layers=1,num_heads=3", context=150, vocab_size=4003, precision="bf16"
)
RECORDING = TypeAdapter(Recording)

if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    Path(sys.argv[1]).write_bytes(RECORDING.dump_json(record(build_step(CELL, device), CELL.mode, device)))
