"""Measure an instrument's workloads on one device: a row per rate, or the reason why it was not measured."""

from collections.abc import Iterator
from contextlib import suppress

import torch

from cs336_systems.benchmarks.instruments import all_reduce, attention, launches, matmul, memory, training, transfers
from cs336_systems.benchmarks.instruments.work import Work, WrongResults, time_rates
from cs336_systems.benchmarks.runner import reason_of, status_of
from cs336_systems.experiments.card import Card
from cs336_systems.measure.gpu_state import INTERVAL_S, STATE, GpuState
from cs336_systems.measure.memory import release
from cs336_systems.nvidia import uuid
from cs336_systems.record.measurement import Measurement, summarize

INSTRUMENTS = {
    "matmul": matmul.works,
    "memory": memory.works,
    "attention": attention.works,
    "launches": launches.works,
    "training": training.works,
    "transfers": transfers.works,
    "all_reduce": all_reduce.works,
}


def works_of(cell: Card, device: torch.device) -> list[Work]:
    """List the workloads of a cell on a device, not yet built."""
    return list(INSTRUMENTS[cell.instrument](device))


def details_of(work: Work, device: torch.device) -> dict[str, str]:
    """The columns that distinguish a workload's rows from others of its cell."""
    return {"device": work.gpus or name_of(device), "work": work.name}


def name_of(device: torch.device) -> str:
    """A GPU's number as text; empty for a CPU."""
    return "" if device.index is None else str(device.index)


def measure_work(work: Work, cell: Card, device: torch.device) -> Iterator[Measurement]:
    """Measure one workload and the device's state meanwhile, or report why it could not be measured."""
    details = details_of(work, device)
    try:
        call = work.build(device)
        state = GpuState(uuid(device), STATE, INTERVAL_S)
        rates = time_rates(work, call, device, cell.milliseconds / 1e3, state)
        yield summarize(work.metric, Card.metrics[work.metric], rates, details=details)
        yield from state.measurements(details)
    except WrongResults as error:
        yield lost(work.metric, error, details)
        yield summarize("wrong_numbers", "", [error.count], details=details)
    except Exception as error:  # Libraries and drivers raise arbitrary exceptions; each loses only this row.
        yield lost(work.metric, error, details)
    finally:
        call = None  # type: ignore[assignment]
        with suppress(RuntimeError):  # Nothing can be released on a device that has disappeared.
            release(device)


def lost(metric: str, error: Exception, details: dict[str, str]) -> Measurement:
    """Make the row of a workload lost to an error."""
    status = status_of(error) or "failed"
    message = reason_of(error)
    return Measurement(metric=metric, unit=Card.metrics[metric], status=status, message=message, details=details)


def usable(device: torch.device) -> bool:
    """Whether a device still works."""
    try:
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError:
        return False
    return True
