"""Answers to the 2026 edition's leaderboard, from closed forms: it is run on two B200s."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting import leaderboard
from cs336_systems.measure.gpus import listed
from scripts.rendering.answer import Answer, Captioned, say
from scripts.rendering.markup import Table
from scripts.views.units import GB

OTHER_GPU = "NVIDIA H200"
"""That of the recorded results, beside the leaderboard's."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, and what the question gives."""
    flops = leaderboard.step_flops()
    total = sum(flops.values())
    least = {gpu: total / (leaderboard.GPUS * listed(gpu).bf16) for gpu in (leaderboard.GPU, OTHER_GPU)}
    peak = listed(leaderboard.GPU)
    return {
        "given": leaderboard,
        "time": Answer(
            "Time",
            say(
                "Not measured. At bf16 peak two {gpu}s take {least:s}: the record, {record:s}, uses {share:percent}.",
                gpu=leaderboard.GPU.removeprefix("NVIDIA "),
                least=least[leaderboard.GPU],
                record=leaderboard.RECORD_SECONDS,
                share=least[leaderboard.GPU] / leaderboard.RECORD_SECONDS,
            ),
            say("Two {gpu}s would need at least {least:s}.", gpu=OTHER_GPU, least=least[OTHER_GPU]),
            evidence=[
                Captioned(memory_table(), "Memory of a rank by closed form; GB are 10⁹ bytes.", closed_form=True)
            ],
            reason=say(
                "The step has {flops:PFLOP} of matmuls, three times those of its forward pass with causal attention "
                "counted half; {attention:percent} are attention's, {head:percent} the head's. The peak is "
                "{peak:TFLOP/s} ({source}). Weights, gradients and moments are in fp32 here; what the forward pass "
                "saves is under autocast with FlashAttention.",
                flops=total / 1e15,
                attention=flops["attention"] / total,
                head=flops["head"] / total,
                peak=peak.bf16 / 1e12,
                source=peak.source,
            ),
        ),
    }


def memory_table() -> Table:
    """The memory of a rank: its state, whole or sharded, and what its forward pass leaves, checkpointed or not."""
    state = leaderboard.STATE_BYTES
    rows = {
        "state, whole on every rank": state,
        "state, sharded over the ranks": state / leaderboard.GPUS,
        "saved for backward, nothing computed again": leaderboard.saved_bytes(0),
        "saved for backward, each block computed again": leaderboard.saved_bytes(1),
    }
    return Table(["of one rank", "GB"], [[name, f"{size / GB:.1f}"] for name, size in rows.items()])
