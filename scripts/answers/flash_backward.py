"""Answers to `flash_backward`: the backward pass as kernels and as compiled PyTorch."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer, Captioned, count, say
from scripts.rendering.markup import Table, fixed_point
from scripts.views.attention_calls import ONE_HEAD, availability
from scripts.views.attention_times import backward_pairs, call_table
from scripts.views.data import measured_gpu, select


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer."""
    table = tables["flash"]
    found = availability(table)
    pairs = backward_pairs(select(call_table(table), **ONE_HEAD))
    why = "its compiled backward pass needs a GPU" if found["measured"] else found["why"]
    told = pairs[~pairs["waits"].astype(bool)]
    faster = int((told["gain"] > 1).sum())
    return {
        "hopper": measured_gpu(tables) != "",
        "ways": Answer(
            asked="Kernels against compiled PyTorch",
            verdict=say(
                "Our kernels are faster than compiled PyTorch in {faster} of {cells}, {ratio:times} in the median.",
                faster=faster,
                cells=count(len(told), "device-bound cell"),
                ratio=told["gain"].median(),
            )
            if len(told)
            else say("Whether kernels or compiled PyTorch are faster cannot be told: all cells are host-bound.")
            if len(pairs)
            else NOTHING,
            more=say(
                "At {longest} tokens the median is {long:times}.",
                longest=int(told["sequence"].max()) if len(told) else None,
                long=select(told, sequence=told["sequence"].max())["gain"].median() if len(told) else None,
            ),
            evidence=[
                Captioned(
                    ratio_table(told),
                    "Time of the backward pass in compiled PyTorch over that of our kernels, medians; causal, one "
                    "head. –: "
                    "either is host-bound.",
                )
            ],
            reason=say(
                "Compiled PyTorch writes the matrices of probabilities and of their gradients to memory and reads them "
                "back, so its traffic grows with the square of the sequence; the kernels keep tiles of them on the "
                "chip."
            ),
            details=[
                Captioned(ways_table(pairs), "The backward pass by itself, medians; a star: host-bound.", long=True)
            ],
            missing=f"Not measured: {why}.",
        ),
    }


def ratio_table(told: DataFrame) -> Table:
    """One line per length, a column per precision and head dimension."""
    columns = sorted(set(zip(told["precision"], told["d"], strict=True)))
    gains = told.pivot(index="sequence", columns=["precision", "d"], values="gain").reindex(columns=columns)
    body = [[str(length), *(fixed_point(gain, 1, "×") for gain in row)] for length, row in gains.iterrows()]
    counts = {name: sum(precision == name for precision, _ in columns) for name, _ in columns}
    return Table(
        ["sequence", *(f"d = {d}" for _, d in columns)], body, text_columns=0, groups=[("", 1), *counts.items()]
    )


def ways_table(pairs: DataFrame) -> Table:
    """Both ways at every shape."""
    body = [
        [
            *(pair["precision"], str(pair["sequence"]), str(pair["d"])),
            *(fixed_point(pair[way], 3) for way in ("kernels", "compiled")),
            fixed_point(pair["gain"], 1, "×*" if pair["waits"] else "×"),
        ]
        for _, pair in pairs.sort_values(["precision", "d", "sequence"]).iterrows()
    ]
    return Table(["precision", "sequence", "d", "kernels / ms", "compiled PyTorch / ms", "ratio"], body)
