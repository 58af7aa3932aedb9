"""The settings of experiments' cells, for which the closed forms predict memory and time."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from cs336_systems.accounting.contenders import UPDATE, Declared, at_once
from cs336_systems.accounting.setting import Attention, Precision, Scheme, Setting
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.leaderboard import AUTO
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import RUNGS, rungs_of
from cs336_systems.sizes import parse_size

PRECISIONS: dict[str, Precision] = {"fp32": "fp32", "bf16": "autocast"}
WITHOUT_SCORES: dict[str, Attention] = {"plain": "plain", "flash": "flash", "sdpa": "flash"}
COMPARISONS = ("data_parallel", "fsdp", "optimizer_sharding")
"""Experiments on several ranks, whose contenders share a cell."""
WRAPPERS: dict[str, dict[str, Any]] = {
    "": {},
    "data_parallel": {"scheme": "data parallel"},
    "sharded_optimizer": {"scheme": "sharded optimizer", "overlap": True},
    "fsdp": {"scheme": "FSDP"},
}
"""Settings of the training ladder's wrappers. The sharded optimizer's shares are updated under the backward pass."""
PREDICTED = (
    "end_to_end",
    "kernel_profile",
    "checkpointing",
    "memory_profile",
    "training_ladder",
    "leaderboard",
    *COMPARISONS,
)
"""Experiments on training steps, whose memory or time is predicted."""


def settings_of(experiment: str, cell: Any) -> Iterator[tuple[str, Setting]]:
    """Each setting that a cell measures, by the name of its rung or contender; none that has no closed form."""
    if experiment not in PREDICTED or getattr(cell, "model", EndToEnd.model) != EndToEnd.model:
        return
    if experiment == "training_ladder":
        for rung in rungs_of(cell.rungs) if cell.part in ("steps", "processes") else ():
            yield rung.name, rung_setting(cell, rung.name)
    elif experiment in COMPARISONS:
        for declared in contenders_of(experiment):
            if not declared.tried or cell.tried:
                yield declared.key, contender_setting(cell, declared)
    else:
        yield "", step_setting(experiment, cell)


def contenders_of(experiment: str) -> Sequence[Declared]:
    """The declared contenders of an experiment on several ranks."""
    declared: Sequence[Declared] = getattr(EXPERIMENTS[experiment], "contenders", ())
    return declared


def step_setting(experiment: str, cell: Any) -> Setting:
    """The setting of a cell that measures a single one."""
    if experiment == "leaderboard":
        return Setting(
            **_batch(cell),
            precision="bf16",
            attention="flash",
            passes="fused",
            keep_hidden=False,
            overlap=True,
            recomputed=parse_size(cell.size).num_layers - 1 if cell.recomputed == AUTO else cell.recomputed,
            ranks={"one_card": 1}.get(cell.part, 2),
            scheme="ZeRO-2",
        )
    return Setting(
        **_batch(cell),
        precision=PRECISIONS[cell.precision],
        attention=WITHOUT_SCORES[cell.attention],
        passes="compiled" if getattr(cell, "compiled", False) else "eager",
        segment=getattr(cell, "segment", 0),
        mode=getattr(cell, "mode", "train_step"),
    )


def rung_setting(cell: Any, name: str) -> Setting:
    """The setting of a rung of the training ladder."""
    rung = RUNGS[name]
    shared = {key: getattr(rung, key) for key in ("precision", "attention", "passes", "fp8", "graph", "overlap")}
    recomputed = parse_size(cell.size).num_layers if rung.checkpoint else 0
    ranks = cell.processes if rung.wrapper else 1
    return Setting(**_batch(cell), **shared | WRAPPERS[rung.wrapper], recomputed=recomputed, ranks=ranks)


def contender_setting(cell: Any, declared: Declared) -> Setting:
    """The setting of a contender on several ranks, as its declaration has it.

    Raises:
        ValueError: it declares no scheme, in one sentence.
    """
    if (scheme := declared.scheme) is None:
        raise ValueError(f"scheme of contender {declared.name} is None; allowed: {', '.join(get_args(Scheme))}")
    sent = declared.sends(cell)
    to_peers = any(not one.what for one in sent)
    shares_updates = scheme in ("sharded optimizer", "ZeRO-2")
    return Setting(
        **_batch(cell),
        precision=PRECISIONS[cell.precision],
        passes="compiled" if getattr(cell, "compiled", False) else "eager",
        ranks=cell.processes,
        scheme=scheme,
        by_block=declared.by_block,
        bucket_mb=None
        if to_peers or not declared.copies
        else declared.bucket_mb or (math.inf if declared.sends is at_once else 100),
        rebuilds=declared.foreign and scheme != "FSDP",
        exposed=declared.after_backward(cell),
        symmetric=to_peers or (shares_updates and not any(one.part == UPDATE for one in sent)),
    )


def _batch(cell: Any) -> dict[str, Any]:
    return {
        "shape": parse_size(cell.size),
        "vocab_size": int(cell.vocab_size),
        "batch_size": int(cell.batch_size),
        "context": int(cell.context),
    }
