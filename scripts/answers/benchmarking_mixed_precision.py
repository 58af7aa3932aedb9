"""Answers to `benchmarking_mixed_precision`: dtypes under autocast, and fp32 against bf16 by size."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, Tile, significant, times
from scripts.views.data import one, reference_context, select
from scripts.views.steps import PASSES, most_complete, steady, step_table

BOTH = "forward + backward"
"""The passes by which precisions are compared: the optimizer works on fp32 weights in both."""
GROWS = 1.1
"""A gain that is larger by this factor has grown, one that is smaller by it has fallen."""
LITTLE = 0.5
"""More tokens cost little if a step takes longer by less than this share of what their number would add."""

COMPONENTS = {
    "parameters": "parameters",
    "fc1_output": "output of the first Linear",
    "norm_output": "output of LayerNorm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients",
}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    return {**dtype_answers(tables["autocast_dtypes"]), **speed_answers(tables["end_to_end"])}


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """What bf16 gains at the largest size, and at the smallest."""
    if not found["largest"]:
        return []
    small, large = found["smallest"], found["largest"]
    what = f"bf16 autocast over fp32, forward and backward of {large['size']}, eager, at context {found['context']}"
    meaning = f"{what} ({times(small['gain'])} for {small['size']})"
    return [Tile(times(large["gain"]), meaning, f"gain from bf16, {large['size']}, {found['context']}")]


def dtype_answers(table: DataFrame) -> dict[str, Any]:
    """The dtype of each component under either autocast."""
    seen = {
        (autocast, component): row["value"]
        for autocast in ("fp16", "bf16")
        for component in COMPONENTS
        if (row := one(table, autocast=autocast, metric=component)) is not None
    }
    body = [
        [title, *(seen.get((autocast, component), "–") for autocast in ("fp16", "bf16"))]
        for component, title in COMPONENTS.items()
    ]
    return {
        "dtypes": Table(["component", "autocast to fp16", "autocast to bf16"], body, text_columns=3),
        "norm_fp16": seen.get(("fp16", "norm_output")),
        "norm_bf16": seen.get(("bf16", "norm_output")),
        "logits_fp16": seen.get(("fp16", "logits")),
    }


def speed_answers(table: DataFrame) -> dict[str, Any]:
    """Median times in both precisions, their ratio by size and by context, and what sets it."""
    steps = steady(step_table(table))
    eager = most_complete(select(steps, compiled=False, attention="plain"))
    compiled = most_complete(select(steps, compiled=True, attention="plain"))
    compiled = select(compiled, context=compiled["context"].max())
    context = reference_context(select(eager, mode="train_step"))
    both = pairs(eager)
    here = [pair for pair in both if pair.context == context]
    compiled_gains = [(pair.gain(BOTH), pair.label) for pair in pairs(compiled) if pair.gain(BOTH)]
    return {
        "context": context,
        "speed": speed_table(here),
        **by_size(here),
        "ends_by_context": ends(by_context(both)),
        "slower": [pair.described() for pair in both if (pair.gain(BOTH) or 1) < 1],
        "pairs": len(both),
        **pace(both),
        "inversions": inversions(eager),
        "compiled_least": min(compiled_gains, default=None),
        "compiled_most": max(compiled_gains, default=None),
        "compiled_context": int(compiled["context"].max()) if len(compiled) else None,
    }


@dataclass(frozen=True)
class Pair:
    """The same step in both precisions."""

    fp32: Series
    bf16: Series

    @property
    def label(self) -> str:
        """The model's size."""
        return str(self.bf16["label"])

    @property
    def context(self) -> int:
        """Tokens per sequence."""
        return int(self.bf16["context"])

    def gain(self, title: str) -> float | None:
        """fp32's time over bf16's, of one of PASSES or of a column with times; None where one was not measured."""
        times = self.fp32[title], self.bf16[title]
        return None if any(map(math.isnan, times)) else times[0] / times[1]

    def described(self) -> dict[str, Any]:
        """What is said of a pair in which bf16 is the slower one."""
        return {
            "cell": f"{self.label} at context {self.context}",
            "gain": self.gain(BOTH),
            "host_bound": bool(self.bf16["host_bound"]),
        }


def pairs(steps: DataFrame) -> list[Pair]:
    """The cells that were measured in both precisions, small to large."""
    found = []
    for _, low in select(steps, precision="bf16").iterrows():
        cell = {name: low[name] for name in ("size", "context", "mode")}
        full = one(steps, precision="fp32", **cell)
        if full is not None:
            found.append(Pair(full, low))
    return found


def speed_table(here: list[Pair]) -> Table:
    """Times of each of PASSES in both precisions, and the device's share of the step."""
    body = []
    for pair in here:
        line = [pair.label]
        for title in PASSES:
            gain = pair.gain(title)
            texts = [f"{pair.fp32[title]:.1f}", f"{pair.bf16[title]:.1f}", f"{gain:.2f}×"] if gain else ["–"] * 3
            line += texts
        line += ["–" if math.isnan(step["busy"]) else f"{100 * step['busy']:.0f}" for step in (pair.fp32, pair.bf16)]
        body.append(line)
    header = ["size", *["fp32", "bf16", "ratio"] * len(PASSES), "fp32", "bf16"]
    groups = [("", 1), *((f"{title} / ms", 3) for title in PASSES), ("device busy / %", 2)]
    if all(line[-2:] == ["–", "–"] for line in body):
        header, groups, body = header[:-2], groups[:-1], [line[:-2] for line in body]
    return Table(header, body, groups=groups)


def by_size(here: list[Pair]) -> dict[str, Any]:
    """What bf16 gains at the smallest and at the largest size, in the step's time and in the device's."""
    gains = [(pair, gain) for pair in here if (gain := pair.gain(BOTH))]
    if not gains:
        return {"smallest": None, "largest": None, "grows": False, "most": None}
    ends = {
        name: {"size": pair.label, "gain": gain, "busy_gain": pair.gain(f"{BOTH}, busy")}
        for name, (pair, gain) in {"smallest": gains[0], "largest": gains[-1]}.items()
    }
    best, gain = max(gains, key=lambda entry: entry[1])
    ordered = [gain for _, gain in gains]
    return {
        **ends,
        "grows": ordered[-1] > GROWS * ordered[0]
        and all(less < GROWS * more for less, more in itertools.pairwise(ordered)),
        "most": {"size": best.label, "gain": gain},
    }


def by_context(both: list[Pair]) -> list[dict[str, Any]]:
    """What bf16 gains at each size from the shortest to the longest context."""
    found = []
    for label in dict.fromkeys(pair.label for pair in both):
        gains = [(pair.context, gain) for pair in both if pair.label == label and (gain := pair.gain(BOTH))]
        if len(gains) > 1:
            (short, less), (long, more) = min(gains), max(gains)
            found.append({"size": label, "short": short, "less": less, "long": long, "more": more})
    return found


def ends(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the last."""
    return found if len(found) < 2 else [found[0], found[-1]]


def pace(both: list[Pair]) -> dict[str, Any]:
    """How often the host sets the pace in either precision, and the size whose time then grows least with context."""
    known = [pair for pair in both if not math.isnan(pair.bf16["busy"])]
    flat = []
    for label in dict.fromkeys(pair.label for pair in known):
        waiting = [pair.bf16 for pair in known if pair.label == label and pair.bf16["host_bound"]]
        if len(waiting) > 1:
            first, last = waiting[0], waiting[-1]
            tokens, factor = last["context"] // first["context"], last["step"] / first["step"]
            if factor - 1 < LITTLE * (tokens - 1):
                contexts = {"short": int(first["context"]), "long": int(last["context"])}
                flat.append({"size": label, "tokens": tokens, "factor": factor, **contexts})
    return {
        "known": len(known),
        "waiting": {p: sum(bool(getattr(pair, p)["host_bound"]) for pair in known) for p in ("fp32", "bf16")},
        "flat": max(flat, key=lambda entry: entry["tokens"] / entry["factor"], default=None),
        "pace": pace_table(known) if known else None,
    }


def pace_table(known: list[Pair]) -> Table:
    """What may set the pace of each size's step: layers, launches, and the step's time in bf16 by context."""
    contexts = sorted({pair.context for pair in known})
    body = []
    for label in dict.fromkeys(pair.label for pair in known):
        pairs_here = {pair.context: pair for pair in known if pair.label == label}
        first = next(iter(pairs_here.values()))
        line = [label, str(traits(first.bf16)["layers"])]
        line += [f"{step['launches']:.0f}" for step in (first.fp32, first.bf16)]
        for context in contexts:
            pair = pairs_here.get(context)
            star = "*" if pair and pair.bf16["host_bound"] else ""
            line.append(f"{significant(pair.bf16['step'])}{star}" if pair else "–")
        body.append(line)
    header = ["size", "layers", "fp32", "bf16", *map(str, contexts)]
    groups = [("", 2), ("launches per step", 2), ("bf16 step / ms at context", len(contexts))]
    return Table(header, body, groups=groups)


def inversions(eager: DataFrame) -> list[dict[str, Any]]:
    """Where a larger model's bf16 training step is the faster one at equal context, the largest difference first."""
    found = []
    trained = select(eager, precision="bf16", mode="train_step")
    for _, group in trained.groupby("context"):
        for small, large in itertools.combinations([step for _, step in group.iterrows()], 2):
            if large["step"] < small["step"]:
                gain = small["step"] / large["step"]
                found.append(
                    {"context": int(small["context"]), "gain": gain, "small": traits(small), "large": traits(large)}
                )
    return sorted(found, key=itemgetter("gain"), reverse=True)


def traits(step: Series) -> dict[str, Any]:
    """What may explain how long a step takes."""
    return {
        "size": step["label"],
        "ms": step["step"],
        "layers": parse_size(step["size"]).num_layers,
        "launches": None if math.isnan(step["launches"]) else int(step["launches"]),
        "busy": None if math.isnan(step["busy"]) else step["busy"],
    }
