"""The training step with each attention, for `flash_benchmarking`."""

from typing import Any

from pandas import DataFrame

from scripts.data import ratio, select, size_order, statistic
from scripts.markup import Table


def model_answers(table: DataFrame) -> dict[str, Any]:
    """The training step of each model size with plain attention, SDPA and ours, where the others were measured."""
    steps = select(table, metric="step", mode="train_step", compiled=False)
    ours = select(steps, attention="flash")
    body, gains = [], []
    for size in size_order(ours):
        first = select(ours, size=size).iloc[0]
        cell = {"size": size} | {name: first[name] for name in ("context", "precision", "warmup")}
        plain, sdpa, flash = (statistic(steps, "median", attention=name, **cell) for name in ("plain", "sdpa", "flash"))
        memory = [
            statistic(table, "mean", metric="peak_memory", mode="train_step", compiled=False, attention=name, **cell)
            for name in ("plain", "flash")
        ]
        if gain := ratio(plain, flash):
            gains.append((gain, first["label"], int(first["context"])))
        body.append(
            [
                *(first["label"], str(first["context"]), first["precision"]),
                *(f"{value:.1f}" if value else "–" for value in (plain, sdpa, flash)),
                *(f"{gain:.2f}×" if (gain := ratio(other, flash)) else "–" for other in (plain, sdpa)),
                *(f"{value / 1024:.1f}" if value else "–" for value in memory),
            ]
        )
    header = ["size", "context", "precision", "plain", "SDPA", "ours", "plain / ours", "SDPA / ours", "plain", "ours"]
    groups = [("", 3), ("training step / ms", 3), ("", 2), ("peak / GiB", 2)]
    return {
        "model": Table(header, body, text_columns=1, groups=groups) if body else None,
        "model_gain": max(gains, default=None),
    }
