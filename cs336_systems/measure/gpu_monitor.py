"""The clock and the power of a GPU while something runs on it, as its driver reports them."""

import threading
from types import TracebackType

import pynvml
import torch

from cs336_systems.record.measurement import POWER, SM_CLOCK, Measurement, summarize

INTERVAL_S = 0.1
"""Sampling interval: short enough to see the clock fall under the power limit; a query takes about a millisecond."""


class GpuMonitor:
    """Samples a CUDA device's SM clock and power from a thread of its own; does nothing on a CPU."""

    def __init__(self, device: torch.device):
        self._uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
        self._clocks: list[float] = []
        self._watts: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "GpuMonitor":
        if self._uuid:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._uuid:
            self._done.set()
            self._thread.join()

    def measurements(self) -> list[Measurement]:
        """Statistics of the samples; none on a CPU, or where the driver reports neither."""
        rows = ((SM_CLOCK, "MHz", self._clocks), (POWER, "W", self._watts))
        return [summarize(metric, unit, samples) for metric, unit, samples in rows if samples]

    def _sample(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
            while True:
                self._clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
                self._watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
                if self._done.wait(INTERVAL_S):
                    break
        except pynvml.NVMLError:
            pass  # A driver that does not report them: the cell has no such rows.
        finally:
            pynvml.nvmlShutdown()
