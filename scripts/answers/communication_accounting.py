"""Answers to `communication_accounting`, from closed forms: the same on every machine."""

import math
from dataclasses import replace
from typing import Any

from cs336_systems.accounting.accelerators import TPU_V5P
from cs336_systems.accounting.mesh import Mesh, bubble_share
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.accounting.xxl import STATES, XXL
from cs336_systems.measure.gpus import listed
from scripts.rendering.answer import Answer, Answers, Facts, Tables, say
from scripts.views.parallelism import MESH, closed_forms
from scripts.views.units import GB

STAGES, MICRO_BATCHES = 4, 16
"""The pipeline in (d)."""
H100_MEMORY = listed("NVIDIA H100 80GB HBM3").memory


def answers(tables: Tables) -> Answers:
    """The section's answers, and what the derivations show."""
    sizes = [2**power for power in range(round(MESH.devices).bit_length())]
    split = min((resized(size) for size in sizes), key=lambda mesh: mesh.least_batch(overlapped=True))
    return {
        "memory": memory(),
        "sharded": sharded(),
        "batch": batch(),
        "tricks": tricks(split),
        "xxl": XXL,
        "device": TPU_V5P,
        "gb": GB,
        "mesh": MESH,
        "split": split,
        "bubble": bubble_share(STAGES, MICRO_BATCHES),
        "stages": STAGES,
        "micro_batches": MICRO_BATCHES,
    }


def overall(batch: float, ranks: int = round(MESH.devices)) -> int:
    """Tokens of all ranks, with equally many on each."""
    return math.ceil(batch) * ranks


BATCHES = [1024, 4096, overall(MESH.least_batch(overlapped=True))]
"""Numbers of tokens for which memory is counted; the last is the answer of (c)."""


def memory() -> Answer:
    """(a) The parts of the state, and the saved activations for several batch sizes."""
    rows = [
        (name, f"${FP32_BYTES * numbers} P$", FP32_BYTES * numbers * XXL.parameters) for name, numbers in STATES.items()
    ]
    rows.append(("total state", "$16 P$", XXL.state_bytes))
    rows += [
        (f"saved for backward, {tokens} tokens", "$2 L (D + F) B$", XXL.saved_bytes * tokens) for tokens in BATCHES
    ]
    body = [[name, form, f"{size / GB:.1f}", f"{size / H100_MEMORY:.2f}"] for name, form, size in rows]
    head = ["", "bytes", "GB", f"GPUs of {H100_MEMORY / GB:.0f} GB"]
    state, tokens = XXL.state_bytes, BATCHES[1]
    gpus = [math.ceil(size / H100_MEMORY) for size in (state, state + tokens * XXL.saved_bytes)]
    facts = Facts(gpus=gpus, tokens=tokens, state=state / GB, saved=XXL.saved_bytes / 1e6)
    return Answer(
        "(a) Memory",
        facts.say(
            "The state takes {state:GB}, or {gpus[0]} H100s of 80 GB; each token adds {saved:MB} for the backward pass."
        ),
        facts.say("With {tokens} tokens, {gpus[1]} H100s are needed."),
        results=closed_forms(head, body, "Memory for training XXL without checkpointing."),
    )


def readings(tokens: int) -> dict[tuple[str, str], int | None]:
    """(b) Possible readings of the question, in words and as formulas, and the fewest devices for some tokens."""
    narrow, wide = XXL.narrow_bytes * tokens, XXL.wide_bytes * tokens
    half = (narrow + wide) / 2
    rows = [
        ("half of the activations sharded, half replicated", "$(16 P + A \\/ 2) \\/ N + A \\/ 2$", half, half),
        ("inputs of the second linear layers sharded", "$(16 P + A_F) \\/ N + A_D$", wide, narrow),
        ("inputs of the first linear layers sharded", "$(16 P + A_D) \\/ N + A_F$", narrow, wide),
        ("half of the activations sharded, half recomputed", "$(16 P + A \\/ 2) \\/ N$", half, 0),
        ("each device has B/N tokens", "$(16 P + A) \\/ N$", 2 * half, 0),
        ("no activations", "$16 P \\/ N$", 0, 0),
    ]
    return {
        (words, formula): XXL.least_devices(TPU_V5P.memory, sharded=sharded, whole=whole)
        for words, formula, sharded, whole in rows
    }


def sharded() -> Answer:
    """(b) The fewest devices under each reading."""
    fewest = [[*readings(tokens).values()] for tokens in BATCHES]
    body = [
        [words, formula, *(str(count) if count else "none" for count in counts)]
        for (words, formula), *counts in zip(readings(1), *fewest, strict=True)
    ]
    head = ["assumption", "bytes per device", *(f"{tokens} tokens" for tokens in BATCHES)]
    groups = [("", 2), ("fewest devices", len(BATCHES))]
    alone = XXL.least_devices(TPU_V5P.memory)
    facts = Facts(memory=TPU_V5P.memory / GB, least=fewest[1][0], tokens=BATCHES[1], alone=alone)
    return Answer(
        "(b) Sharded",
        facts.say(
            "XXL fits on {least} devices with {tokens} tokens: "
            '$N > (16 P + A \\/ 2) \\/ ({memory:whole} "GB" - A \\/ 2)$.'
        ),
        facts.say(
            "Half of the activations, $A\\/2$ bytes, are sharded. The state alone needs {alone} devices; with {most} "
            "or more tokens, no number of devices is enough.",
            most=math.ceil(TPU_V5P.memory / (XXL.saved_bytes / 2)),
        ),
        results=closed_forms(head, body, "Fewest devices under each assumption about sharding.", groups=groups),
    )


def batch() -> Answer:
    """(c) The smallest batch on the handout's mesh, and under other readings."""
    one_way = replace(MESH, device=replace(TPU_V5P, bandwidth=TPU_V5P.bandwidth / 2))
    least = MESH.least_batch(overlapped=True)
    in_turn = MESH.least_batch(overlapped=False)
    rows: list[tuple[Any, ...]] = [  # with the number of ranks if it differs from the number of devices
        ("both collectives at once, as assumed here", "$alpha \\/ (Y M_X)$", least),
        ("one after the other", "$alpha \\/ (Y M_X) dot 1 \\/ (1 - alpha Y \\/ (M_Y F))$", in_turn),
        ("batch per FSDP rank (Y devices)", "$alpha \\/ M_X$", least * MESH.tensor, round(MESH.fsdp)),
        ("one mesh axis for FSDP", "$alpha \\/ Y$", replace(MESH, fsdp_axes=1).least_batch(overlapped=True)),
        ("one direction of each link", "$2 alpha \\/ (Y M_X)$", one_way.least_batch(overlapped=True)),
        ("weights gathered in fp32", "$2 alpha \\/ (Y M_X)$", 2 * least),
        ("weights of one linear layer, FLOPs of both", "$alpha \\/ (2 Y M_X)$", least / 2),
        ("best X and Y, at once", "$alpha^2 \\/ (M_X M_Y F)$", MESH.best_batch(overlapped=True)),
        ("best X and Y, one after the other", "$4 alpha^2 \\/ (M_X M_Y F)$", MESH.best_batch(overlapped=False)),
    ]
    body = [
        [name, form, f"{batch:.1f}", f"{batch / least:.2f}×", overall(batch, *ranks)]
        for name, form, batch, *ranks in rows
    ]
    head = ["interpretation", "tokens per device", "", "relative", "total"]
    facts = Facts(each=math.ceil(least), all=overall(least), each_in_turn=math.ceil(in_turn), in_turn=overall(in_turn))
    return Answer(
        "(c) Compute-bound",
        facts.say("The forward pass is compute-bound with {each} or more tokens per device, {all} in total."),
        facts.say("If the two collectives run one after the other, it needs {each_in_turn} ({in_turn} in total)."),
        results=closed_forms(
            head,
            body,
            "Smallest compute-bound batch in tokens, by interpretation. Total: rounded up per device; in the third "
            "row, per rank.",
        ),
    )


def tricks(split: Mesh) -> Answer:
    """(d) The smallest batch after each change."""
    pipeline = f"Z = {STAGES} pipeline stages, each with X = {MESH.fsdp // STAGES}, Y = {MESH.tensor}"
    rows = [
        (f"X = {split.fsdp}, Y = {split.tensor}", "$alpha \\/ (Y M_X)$", split.least_batch(overlapped=True)),
        (pipeline, "$alpha \\/ (Z Y M_X)$", MESH.pipelined_batch(STAGES)),
        ("weights gathered in 8 bits", "$alpha \\/ (2 Y M_X)$", MESH.least_batch(overlapped=True) / 2),
    ]
    body = [[name, form, f"{batch:.1f}", overall(batch)] for name, form, batch in rows]
    head = ["change", "tokens per device", "", "total"]
    verdict = "Use more tensor parallelism ($Y = {tensor}$), pipelining, or fewer bytes per gathered weight."
    return Answer(
        "(d) Smaller batches",
        say(verdict, tensor=split.tensor),
        results=closed_forms(
            head, body, "Smallest compute-bound batch in tokens after each change, with both collectives at once."
        ),
    )


def resized(tensor: int) -> Mesh:
    """The mesh with a tensor-parallel axis of another size, and as many devices."""
    return replace(MESH, fsdp=MESH.devices // tensor, tensor=tensor)
