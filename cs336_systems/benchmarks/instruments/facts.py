"""Facts that the driver reports on a GPU, and the operating system on a CPU, before anything runs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import torch

from cs336_systems.measure.gpu_facts import nvml_device, read_facts
from cs336_systems.nvidia import uuid
from cs336_systems.record.measurement import Measurement, skipped

CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
CPU_FACTS: Mapping[str, Callable[[], object]] = {
    "idle_utilization": lambda: psutil.cpu_percent(interval=1.0),
    "logical_cores": psutil.cpu_count,
    "threads": torch.get_num_threads,
    "governor": lambda: (CPUFREQ / "scaling_governor").read_text(encoding="ascii").strip(),
    "max_clock": lambda: int((CPUFREQ / "cpuinfo_max_freq").read_text(encoding="ascii")) // 1000,
    "thermal_throttles": lambda: sum(
        int(count.read_text(encoding="ascii"))
        for count in Path("/sys/devices/system/cpu").glob("cpu*/thermal_throttle/core_throttle_count")
    ),
}
"""Facts of a CPU: percentage of time in which other processes compute, counts, and MHz."""


def facts(device: torch.device, gpu: str) -> list[Measurement]:
    """Read all facts of a device; unreported ones have a reason."""
    if device.type == "cuda":
        with nvml_device(uuid(device)) as handle:
            by_name = read_facts(handle)
    else:
        by_name = cpu_facts()
    return [fact_row(gpu, name, value, reason) for name, (value, reason) in by_name.items()]


def cpu_facts() -> dict[str, tuple[str, str]]:
    """Read every fact of a CPU: its value as text, or the reason if it has none."""
    by_name = {}
    for name, read in CPU_FACTS.items():
        try:
            by_name[name] = (str(read()), "")
        except OSError:
            by_name[name] = ("", "the operating system does not report it")
    return by_name


def fact_row(gpu: str, name: str, value: str, reason: str) -> Measurement:
    """Make the row of a fact."""
    details = {"device": gpu, "about": name}
    if reason or not value:
        return skipped("fact", "fact", reason or "it is empty", details)
    return Measurement(metric="fact", unit="fact", n=1, value=value, details=details)
