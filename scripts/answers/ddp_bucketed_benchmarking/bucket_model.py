"""The overhead of bucketed gradient reduction by a model: part (b) of `ddp_bucketed_benchmarking`."""

from dataclasses import replace
from typing import Any

from cs336_systems.accounting.bucketing import BucketedReduction


def bucket_answers(model: BucketedReduction | None) -> dict[str, Any]:
    """The best buckets of a model with measured constants; None: only the derivation is shown.

    The handout's assumption stands beside the model, whose backward pass is the measured one.
    """
    if model is None:
        return {"model": None}
    return {"model": model, "assumed": replace(model, backward_seconds=None)}
