"""Clocks, power, temperature, PCIe link and throttle reasons of a GPU while something runs on it. No torch here."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import pynvml

from cs336_systems.measure.gpu_facts import DRIVER_LACKS, nvml_device
from cs336_systems.record.measurement import POWER, SM_CLOCK, Measurement, summarize

INTERVAL_S = 0.05
REASONS: Mapping[str, int] = {
    "application clocks": pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
    "SW power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "HW slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
    "SW thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "HW thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "HW power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "display clocks": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
}
"""Why a GPU runs below its highest clock, by nvidia-smi's names, and the driver's bit of each; idle is none."""


def watts(handle: Any) -> float:
    """The power at this moment or, where a driver has only that, its average over the last second."""
    (now,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    return (pynvml.nvmlDeviceGetPowerUsage(handle) if now.nvmlReturn else now.value.uiVal) / 1e3


STATE: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    SM_CLOCK: ("MHz", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock": ("MHz", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    POWER: ("W", watts),
    "temperature": ("°C", lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    "link_generation": ("", pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    "link_width": ("", pynvml.nvmlDeviceGetCurrPcieLinkWidth),
}
"""Unit and reading of what is sampled, by the metric's name."""


class GpuState:
    """Samples a GPU's state from a thread of its own; without a driver that reports it, does nothing."""

    def __init__(self, uuid: str):
        """Prepare to sample the GPU of a UUID as PyTorch prints it; an empty one is that of a CPU."""
        self._uuid = uuid
        self._samples: dict[str, list[float]] = {metric: [] for metric in STATE}
        self._reasons: list[int] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "GpuState":
        if self._uuid:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._uuid:
            self._thread.join()

    def measurements(self, details: Mapping[str, str]) -> Iterator[Measurement]:
        """Statistics of what the driver reports, and for each throttle reason the share of samples that have it."""
        for metric, samples in self._samples.items():
            if samples:
                yield summarize(metric, STATE[metric][0], samples, details=details)
        for reason, bit in REASONS.items():
            if share := sum(bool(seen & bit) for seen in self._reasons) / max(len(self._reasons), 1):
                yield summarize("throttled", "share", [share], details={**details, "about": reason})

    def _sample(self) -> None:
        try:
            with nvml_device(self._uuid) as handle:
                readings = {metric: read for metric, (_, read) in STATE.items()}
                while True:
                    for metric, read in list(readings.items()):
                        try:
                            self._samples[metric].append(read(handle))
                        except DRIVER_LACKS:
                            del readings[metric]
                    with suppress(*DRIVER_LACKS):
                        self._reasons.append(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
                    if self._done.wait(INTERVAL_S):
                        return
        except pynvml.NVMLError:
            pass  # No driver, or a GPU that has gone: there are no rows then.
