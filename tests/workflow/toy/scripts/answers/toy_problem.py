"""Answers to the toy problem."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, count, say
from scripts.rendering.markup import Table, Tile
from scripts.views.data import select


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The sum by number of processes."""
    rows = select(tables["ping"], metric="sum").sort_values(["processes", "numbers"])
    body = [[str(row["processes"]), str(row["numbers"]), f"{row['mean']:.0f}"] for _, row in rows.iterrows()]
    sums = Table(["processes", "numbers", "sum of ones"], body)
    pings = count(len(rows), "ping") if len(rows) else None
    verdict = say("{pings} came back.", pings=pings)
    results = [Captioned(sums, "What ones sum to."), "ping_time"]
    return {"sums": Answer("Pings", verdict, results=results), "cells": len(rows)}


def tiles(answers: Mapping[str, Any]) -> list[Tile]:
    """How many pings there were."""
    return [Tile(str(answers["cells"]), "pings came back")]
