"""Record the memory of one training step of a tiny model, for the tests of the replay that run without a GPU.

Launch, on a machine with a GPU: python -m tests.support.record_memory tests/data/memory-bf16.json
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from cs336_systems.benchmarks.end_to_end import build_step
from cs336_systems.benchmarks.memory_profile import record
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.memory_recording import BlockState, Event, Operator, Recording, Segment, Stage

CELL = EndToEnd(
    size="tiny:d_model=96,d_ff=260,num_layers=1,num_heads=3", context=150, vocab_size=4003, precision="bf16"
)


def from_zero(recording: Recording) -> Recording:
    """The recording with times from 0, and addresses from the lowest one."""
    lowest = min(block.address for segment in recording.segments for block in segment.blocks)
    first = recording.events[0].microseconds

    def shifted(owners):
        return {address - lowest: owner for address, owner in owners.items()}

    return dataclasses.replace(
        recording,
        segments=[
            segment._replace(blocks=[block._replace(address=block.address - lowest) for block in segment.blocks])
            for segment in recording.segments
        ],
        events=[
            event._replace(address=event.address - lowest, microseconds=event.microseconds - first)
            for event in recording.events
        ],
        owners_before=shifted(recording.owners_before),
        owners_after=shifted(recording.owners_after),
    )


def to_json(recording: Recording) -> str:
    """Serialize a recording as compact JSON."""
    return json.dumps(dataclasses.asdict(recording), separators=(",", ":"))


def from_json(text: str) -> Recording:
    """Parse a recording that `to_json` wrote."""
    content = json.loads(text)
    return Recording(
        segments=[Segment(small, [BlockState(*block) for block in blocks]) for small, blocks in content["segments"]],
        events=[Event(*event) for event in content["events"]],
        stages=[Stage(*stage) for stage in content["stages"]],
        operators=[Operator(*operator) for operator in content["operators"]],
        owners_before={int(address): owner for address, owner in content["owners_before"].items()},
        owners_after={int(address): owner for address, owner in content["owners_after"].items()},
        peak=content["peak"],
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    recording = record(build_step(CELL, device), CELL.mode, device)
    Path(sys.argv[1]).write_text(to_json(from_zero(recording)) + "\n", encoding="utf-8")
