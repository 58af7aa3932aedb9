"""Answers to `ddp_bucketed_benchmarking`: bucket sizes, what the model says of them, and the whole progression."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pandas import DataFrame, notna

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.answers.ddp_bucketed_benchmarking.bucket_model import bucket_answers
from scripts.rendering.markup import Table, significant
from scripts.views.bucket_sizes import bucket_model, predicted
from scripts.views.comparison import cells_of, contenders, device_bound, fastest, outcome
from scripts.views.comparison_tables import COLUMNS, contender_table, fixed, missing
from scripts.views.data import select
from scripts.views.progress import progress

PROGRESSION = ["naive", "flat", "overlapped", "bucketed"]


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section; the derivation needs none."""
    table = tables["data_parallel"]
    rows = contenders(DataParallelTraining, table)
    if not len(rows):
        return {"steps": None, "missing": missing(table), "buckets": bucket_answers(None)}
    models = [(cell, bucket_model(tables["all_reduce"], cell)) for cell in cells_of(device_bound(rows))]
    fitted = [(cell, model) for cell, model in models if model is not None]
    return {
        "steps": contender_table(DataParallelTraining, table, rows, COLUMNS, ["bucketed"]),
        "exposed": bool(rows["exposed"].notna().any()),
        "swept": bool(select(rows, contender="bucketed")["exposed"].notna().any()),
        **best_sizes(device_bound(rows)),
        "gain": progress(DataParallelTraining, rows, ["overlapped"], ["bucketed"]),
        "order": order(device_bound(rows)),
        "buckets": bucket_answers(fitted[0][1] if fitted else None),
        "first": fitted[0][0]["cell"].iloc[0] if fitted else "",
        **against_the_model(fitted),
    }


def best_sizes(rows: DataFrame) -> dict[str, Any]:
    """The cells in which each bucket size has the shortest step, and the number of those in which another is as good.

    `whole_from` is the smallest bucket that holds all gradients, if larger ones were measured too.
    """
    best: dict[str, list[str]] = {}
    as_good = cells = 0
    for cell in cells_of(rows):
        winner = fastest(cell, ["bucketed"])
        if winner is None:
            continue
        cells += 1
        best.setdefault(winner["bucket_mb"], []).append(winner["cell"])
        others = select(cell, contender="bucketed").drop(winner.name)
        as_good += any(outcome(winner, other) == "same" for _, other in others.iterrows())
    bucketed = select(rows, contender="bucketed")
    whole = sorted(set(select(bucketed, messages=1)["bucket_mb"]), key=float)
    return {
        "best": best,
        "as_good": as_good,
        "swept_cells": cells,
        "whole_from": whole[0] if len(whole) > 1 else None,
    }


def order(rows: DataFrame) -> dict[str, Any]:
    """In how many cells each of the four is faster than the one before it, buckets at least as fast; where not."""
    complete = [cell for cell in cells_of(rows) if set(PROGRESSION) <= set(cell["contender"])]
    broken: dict[str, list[str]] = {}
    for cell in complete:
        for first, second in pairwise(PROGRESSION):
            earlier, later = fastest(cell, [first]), fastest(cell, [second])
            assert earlier is not None
            assert later is not None
            found = outcome(earlier, later)
            if found == "slower" or (found == "same" and second != "bucketed"):
                broken.setdefault(f"{first} and {second}", []).append(earlier["cell"])
    failed = {cell for cells in broken.values() for cell in cells}
    return {"cells": len(complete), "held": len(complete) - len(failed), "broken": broken}


def against_the_model(fitted: list[tuple[DataFrame, Any]]) -> dict[str, Any]:
    """Predicted best bucket sizes and overheads beside the measured ones."""
    body: list[list[str]] = []
    errors: list[dict[str, Any]] = []
    sizes_right = 0
    for cell, model in fitted:
        sizes = select(cell, contender="bucketed")
        sizes = sizes.assign(predicted=[predicted(model, row) for _, row in sizes.iterrows()])
        expected = sizes.sort_values("predicted", kind="stable").iloc[0]
        best = sizes.sort_values("median", kind="stable").iloc[0]
        error = best["exposed"] - best["predicted"]
        sizes_right += outcome(best, expected) != "slower"
        errors.append({"error": error, **{name: best[name] for name in ("cell", "exposed", "stretched")}})
        body.append(
            [
                best["cell"],
                str(significant(1e3 * model.backward)),
                str(significant(model.best_bucket_size / 1e6)),
                fixed(1e3 * model.least_overhead),
                expected["bucket_mb"],
                fixed(expected["predicted"]),
                best["bucket_mb"],
                fixed(best["exposed"]),
                fixed(best["predicted"]),
                fixed(error),
            ]
        )
    header = ["", "backward", "size", "left", "size", "left", "size", "exposed", "left", "error"]
    groups = [("", 2), ("best by the model", 2), ("of those measured", 2), ("best as measured", 4)]
    known = [found for found in errors if notna(found["error"])]
    worst = max(known, key=lambda found: abs(found["error"]), default=None)
    return {
        "comparison": Table(header, body, groups=groups) if body else None,
        "sizes_right": sizes_right,
        "cells": len(body),
        "largest_error": worst,
        # Where it stands for most of the error; NaN where no step was profiled.
        "most_stretched": worst["stretched"] if worst and worst["stretched"] > worst["error"] / 2 > 0 else None,
    }
