"""Clocks, power, temperature, PCIe link and throttle reasons of a GPU while something runs on it. No torch here."""

import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import pynvml

from cs336_systems.measure.gpu_facts import DRIVER_LACKS, nvml_device
from cs336_systems.record.measurement import POWER, SM_CLOCK, Measurement, summarize

INTERVAL_S = 0.05
"""Sampling interval of the card."""
THROTTLED = "throttled"
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
"""Reasons why a GPU runs below its highest clock, by nvidia-smi's names, with the driver's bits; idle is not one."""


def watts(handle: Any) -> float:
    """The power at this moment or, if the driver reports nothing else, its average over the last second."""
    (now,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    return (pynvml.nvmlDeviceGetPowerUsage(handle) if now.nvmlReturn else now.value.uiVal) / 1e3


def sm_clock(handle: Any) -> float:
    """Clock of the SMs."""
    return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))


Readings = Mapping[str, tuple[str, Callable[[Any], float]]]
"""Unit and reading function of each sampled metric, by name."""
CLOCK_AND_POWER: Readings = {
    SM_CLOCK: ("MHz", sm_clock),
    POWER: ("W", lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
}
"""Sampled in each cell of an experiment: a query takes about a millisecond."""
STATE: Readings = {
    SM_CLOCK: ("MHz", sm_clock),
    "memory_clock": ("MHz", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    POWER: ("W", watts),
    "temperature": ("°C", lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    "link_generation": ("", pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    "link_width": ("", pynvml.nvmlDeviceGetCurrPcieLinkWidth),
    THROTTLED: ("share", lambda handle: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
}
"""Sampled while the card's workloads run."""


class GpuState:
    """Samples a GPU's state from a separate thread; without a driver that reports it, does nothing."""

    def __init__(self, uuid: str, readings: Readings = CLOCK_AND_POWER, interval_s: float = 0.1):
        """Prepare to sample the GPU with a UUID as PyTorch prints it; an empty UUID means a CPU.

        The interval is short enough to see the clock fall under the power limit.
        """
        self._uuid = uuid
        self._readings = readings
        self._interval_s = interval_s
        self._samples: dict[str, list[float]] = {metric: [] for metric in readings}
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

    def measurements(self, details: Mapping[str, str] = MappingProxyType({})) -> Iterator[Measurement]:
        """Statistics of the driver's reports, and for each throttle reason the share of samples with it."""
        for metric, samples in self._samples.items():
            if samples and metric != THROTTLED:
                yield summarize(metric, self._readings[metric][0], samples, details=details)
        reasons = self._samples.get(THROTTLED, [])
        for reason, bit in REASONS.items():
            if share := sum(bool(int(seen) & bit) for seen in reasons) / max(len(reasons), 1):
                yield summarize(THROTTLED, "share", [share], details={**details, "about": reason})

    def _sample(self) -> None:
        try:
            with nvml_device(self._uuid) as handle:
                readings = {metric: read for metric, (_, read) in self._readings.items()}
                while True:
                    for metric, read in list(readings.items()):
                        try:
                            self._samples[metric].append(read(handle))
                        except DRIVER_LACKS:
                            del readings[metric]
                    if self._done.wait(self._interval_s):
                        return
        except pynvml.NVMLError:
            pass  # No driver, or the GPU has disappeared: no rows.
