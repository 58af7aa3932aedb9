"""The time of a training step as a weighted sum of its work, with weights fitted to recorded steps.

A weight is the factor by which a kind of work takes longer than at the data sheet's rate: 1.4 for matmuls means 71 % of
the dense peak. `python -m scripts.calibration.rates` fits them.
"""

from collections.abc import Mapping
from dataclasses import asdict

from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_work import Rates, Work, step_work

LEAST: Mapping[str, float] = {
    "hidden": 0.0,
    "gathered": 0.0,
    "symmetric": 0.0,
    "kernels": 0.0,
    "flash_exponentials": 0.0,
}
"""The smallest possible weight, if it is not 1: nothing is faster than the data sheet, but communication can be
hidden."""
UNKNOWN: Mapping[str, float] = {"kernels": 2e-6, "flash_exponentials": 500.0}
"""The weight of work that occurs in no recorded step, if it is not DEFAULT."""
DEFAULT = 1.4


def step_seconds(setting: Setting, rates: Rates, weights: Mapping[str, float]) -> float:
    """The device's seconds in a step: the step time, unless the host is slower."""
    return weighted(step_work(setting, rates), weights)


def weighted(work: Work, weights: Mapping[str, float]) -> float:
    """Weighted seconds of some work."""
    return sum(weights[kind] * amount for kind, amount in asdict(work).items())
