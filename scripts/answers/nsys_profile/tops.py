"""The kernel that takes most time in a pass, and where its calls come from, for `nsys_profile`."""

from typing import Any

from pandas import DataFrame

from cs336_systems.measure.kernel_names import categorize
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, percent
from scripts.views.data import PRECISIONS, ratio, select, size_order
from scripts.views.kernels import FORWARD, FORWARD_AND_BACKWARD, kernels, label_of, products, readable

TOGETHER = "others ("
"""Begins the name of a row that several small kernels share."""


def top_answers(here: DataFrame, launched: str) -> dict[str, Any]:
    """(b) The kernel that takes most time in the forward pass, and in forward and backward, by size and precision.

    `launched` is what readers call a kernel: an operator on a CPU.
    """
    forward_body, both_body = [], []
    others: set[str] = set()
    matmuls = compared = same = 0
    divided = True
    for size in size_order(here):
        for precision in PRECISIONS:
            cell = {"size": size, "precision": precision}
            forward = top(kernels(here, FORWARD, mode="inference", **cell))
            both = top(kernels(here, FORWARD_AND_BACKWARD, mode="train_step", **cell))
            names = [label_of(here, size), precision]
            if forward:
                callers = calls_explained(forward["launched"], parse_size(size).num_layers)
                forward_body.append([*names, readable(forward["kernel"]), callers, *forward["numbers"]])
                if forward["category"] == "matmul":
                    matmuls += 1
                else:
                    others.add(categorize(forward["kernel"]))  # by its name: a norm may launch one that multiplies
                    divided &= forward["product_kernels"] > 1
            if both:
                both_body.append([*names, readable(both["kernel"]), *both["numbers"]])
            if forward and both:
                compared += 1
                same += forward["kernel"] == both["kernel"]
    numbers = ["calls", "share", "products"]
    return {
        "top": Table(["size", "precision", launched, "called by", *numbers], forward_body, text_columns=4),
        "top_both": Table(["size", "precision", launched, *numbers], both_body, text_columns=3),
        "tops": len(forward_body),
        "tops_matmul": matmuls,
        "tops_others": sorted(others),
        "tops_divided": divided,
        "tops_both": len(both_body),
        "tops_compared": compared,
        "tops_same": same,
    }


def top(rows: DataFrame) -> dict[str, Any] | None:
    """The kernel with the most time in a pass: its launches, and as text calls, share and the pass's products."""
    named = rows[~rows["kernel"].str.startswith(TOGETHER)] if len(rows) else rows
    if not len(named):
        return None
    kernel = str(named.groupby("kernel")["ms"].sum().idxmax())
    launched = select(rows, kernel=kernel)
    share = percent(ratio(launched["ms"].sum(), rows["ms"].sum()))
    return {
        "kernel": kernel,
        "launched": launched,
        "category": launched["category"].iloc[0],
        "product_kernels": products(rows)["kernel"].nunique(),
        "numbers": [f"{launched['calls'].sum():.0f}", str(share), f"{products(rows)['calls'].sum():.0f}"],
    }


def calls_explained(launched: DataFrame, layers: int) -> str:
    """A kernel's launches as layers × modules, where they come from blocks: "12 × (query, 2 rope) + head"."""
    per_range = launched.groupby("range", sort=False)["calls"].sum()
    inside = [term(str(name), calls / layers) for name, calls in per_range.items() if calls % layers == 0]
    outside = [term(str(name), calls) for name, calls in per_range.items() if calls % layers]
    blocks = [f"{layers} × ({', '.join(inside)})"] if inside else []
    return " + ".join([*blocks, *outside])


def term(name: str, calls: float) -> str:
    """A module by the last part of its name, with its number of calls unless it is one."""
    module = name.rpartition(".")[2]
    return module if calls == 1 else f"{calls:.0f} {module}"
