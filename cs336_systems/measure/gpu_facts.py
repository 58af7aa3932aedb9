"""Limits, modes, links and error counters of a GPU, as its driver reports them. No torch here."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml

IDLE_SAMPLES, IDLE_INTERVAL_S = 10, 0.1
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
OFF_ON = {0: "off", 1: "on"}
DRIVER_LACKS = (AttributeError, pynvml.NVMLError)
"""Exceptions for facts that the driver, its Python package or a user's permissions do not provide."""

Fact = Callable[[Any], object]


@contextlib.contextmanager
def nvml_device(uuid: str) -> Iterator[Any]:
    """Open the driver's handle of a device with a UUID as PyTorch prints it; of a GPU partition (MIG), the whole GPU's.

    An NVMLError means that the driver's library is missing, or does not know the device.
    """
    pynvml.nvmlInit()
    try:
        try:
            yield pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError_NotFound:
            part = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
            yield pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    finally:
        pynvml.nvmlShutdown()


def read_facts(handle: Any) -> dict[str, tuple[str, str]]:
    """Read every fact of a GPU: its value as text, or the driver's reason if it has none."""
    by_name = {}
    for name, read in FACTS.items():
        try:
            by_name[name] = (str(read(handle)), "")
        except DRIVER_LACKS as error:
            by_name[name] = ("", f"the driver does not report it: {error}")
    return by_name


def _watts(read: Callable[[Any], int]) -> Fact:
    return lambda handle: f"{read(handle) / 1e3:g}"


def _max_clock(kind: int) -> Fact:
    return lambda handle: pynvml.nvmlDeviceGetMaxClockInfo(handle, kind)


def _errors(kind: int) -> Fact:
    return lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)


def _remapped(place: int) -> Fact:
    return lambda handle: pynvml.nvmlDeviceGetRemappedRows(handle)[place]


def other_processes(handle: Any) -> int:
    """Count the other processes that compute on a GPU; a container sees only its own, if any."""
    return len({process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)} - {os.getpid()})


def idle_utilization(handle: Any) -> float:
    """Percentage of a second in which kernels run while this process launches none."""
    samples = []
    for _ in range(IDLE_SAMPLES):
        time.sleep(IDLE_INTERVAL_S)
        samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return statistics.median(samples)


def cuda_version(_: Any) -> str:
    """The newest CUDA version that the driver knows."""
    number = pynvml.nvmlSystemGetCudaDriverVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


FACTS: Mapping[str, Fact] = {
    # First, so that earlier work on the GPU is over by then.
    "idle_utilization": idle_utilization,
    "name": pynvml.nvmlDeviceGetName,
    "uuid": pynvml.nvmlDeviceGetUUID,
    "driver": lambda handle: pynvml.nvmlSystemGetDriverVersion(),
    "driver_cuda": cuda_version,
    "power_limit": _watts(pynvml.nvmlDeviceGetEnforcedPowerLimit),
    "default_power_limit": _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
    "max_sm_clock": _max_clock(pynvml.NVML_CLOCK_SM),
    "max_memory_clock": _max_clock(pynvml.NVML_CLOCK_MEM),
    "slowdown_temperature": lambda handle: pynvml.nvmlDeviceGetTemperatureThreshold(
        handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ),
    "persistence_mode": lambda handle: OFF_ON[pynvml.nvmlDeviceGetPersistenceMode(handle)],
    "display": lambda handle: OFF_ON[pynvml.nvmlDeviceGetDisplayActive(handle)],
    "compute_mode": lambda handle: COMPUTE_MODES[pynvml.nvmlDeviceGetComputeMode(handle)],
    "mig": lambda handle: OFF_ON[pynvml.nvmlDeviceGetMigMode(handle)[0]],
    "ecc": lambda handle: OFF_ON[pynvml.nvmlDeviceGetEccMode(handle)[0]],
    "corrected_errors": _errors(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "uncorrected_errors": _errors(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "remapped_rows": lambda handle: sum(pynvml.nvmlDeviceGetRemappedRows(handle)[:2]),
    "remapping_pending": lambda handle: OFF_ON[_remapped(2)(handle)],  # type: ignore[index]
    "remapping_failed": lambda handle: OFF_ON[_remapped(3)(handle)],  # type: ignore[index]
    "max_link_generation": pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "max_link_width": pynvml.nvmlDeviceGetMaxPcieLinkWidth,
    "other_processes": other_processes,
}
"""Queries to the driver, by name: W, MHz, °C, percent, counts, and modes by name."""
