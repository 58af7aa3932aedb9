"""Why a GPU is slow, misconfigured or faulty, based on its driver's reports, with the numbers that show it."""

from collections.abc import Iterable, Iterator, Sequence

from scripts.card.lines import Facts, Line, number
from scripts.rendering.markup import significant

BUSY = 20.0
"""Percent of the time in which another process must compute to count as a neighbour."""
NAMED = 0.2
"""Share of the time in which the driver must name a throttle reason."""
HEAT = ("HW thermal slowdown", "SW thermal slowdown")
LOWER_CLOCK, LOWER_MEMORY_CLOCK = 0.93, 0.97
"""Shares of the expected clock below which a low clock is the cause of a slow GPU."""
LOWER_LIMIT = 0.99
ENDED = ("CUDA error", "NCCL error", "its process", "it took longer")
"""Parts of the messages of a failing GPU, not of a library that does not support it."""
COMPUTE = ("matmul", "attention", "training")
LINK = "link to other GPUs"
READINGS = {
    "sm_clock": ("SM clock {} MHz", "max_sm_clock", ""),
    "memory_clock": ("memory clock {} MHz", "max_memory_clock", "memory"),
    "link_width": ("PCIe x{} lanes", "max_link_width", "transfers"),
    "link_generation": ("generation {}", "max_link_generation", "transfers"),
    "power": ("power {} W", "power_limit", ""),
    "temperature": ("{} °C", "", ""),
}
"""A GPU's state in words, with the fact that bounds it, and the affected instrument."""
Explanation = tuple[str, str]
"""A cause, and the numbers that show it, in a sentence."""


def faults(facts: Facts, lines: Sequence[Line]) -> Iterator[Explanation]:
    """Wrong results, memory errors, and workloads that fail."""
    for line in lines:
        if line.wrong:
            yield "wrong results", f"{line.instrument}, {line.work}: {line.message}"
    if errors := number(facts, "uncorrected_errors"):
        yield "memory errors", f"uncorrectable memory errors since the driver was loaded: {errors:.0f}"
    if facts.get("remapping_pending") == "on":
        yield "memory errors", "memory rows wait for a GPU reset to be remapped"
    if facts.get("remapping_failed") == "on":
        yield "memory errors", "memory rows could not be remapped"
    failed = [line for line in lines if line.status == "failed" and any(sign in line.message for sign in ENDED)]
    if failed:
        first = failed[0]
        yield "workloads fail", f"{len(failed)} failed, first {first.instrument}, {first.work}: {first.message}"


def misconfigurations(facts: Facts, *, tf32: bool, cuda: str) -> Iterator[Explanation]:
    """Unusual modes and limits; values that the driver does not report do not count.

    Args:
        facts: the driver's reports.
        tf32: whether fp32 matmuls rounded their inputs to TF32.
        cuda: the version of CUDA that PyTorch was built for; may be empty.
    """
    if facts.get("mig") == "on":
        yield "MIG", "the GPU is partitioned (MIG): a part has only some of its SMs and memory bandwidth"
    limit, default = number(facts, "power_limit"), number(facts, "default_power_limit")
    if limit and default and limit < LOWER_LIMIT * default:
        yield "power cap", f"the power limit is {limit:g} W, the default {default:g} W"
    if facts.get("persistence_mode") == "off" and facts.get("display") != "on":
        yield (
            "persistence mode",
            "persistence mode is off: the first process that needs the GPU waits for the driver to load",
        )
    mode = facts.get("compute_mode") or "default"
    if mode != "default":
        yield "compute mode", f"the compute mode is {mode}; the default mode lets several processes use the GPU"
    newest = facts.get("driver_cuda", "")
    if cuda and newest and version(newest) < version(cuda):
        driver = facts.get("driver", "")
        yield "old driver", f"driver {driver} supports CUDA {newest}, but PyTorch was built for CUDA {cuda}"
    if tf32:
        yield "TF32", "fp32 matmuls round their inputs to TF32 although TF32 is off: see NVIDIA_TF32_OVERRIDE"


def version(text: str) -> tuple[int, ...]:
    """A comparable version."""
    return tuple(int(part) for part in text.split("."))


def neighbour(facts: Facts) -> Iterator[Explanation]:
    """Another process that computes on the GPU, or on the CPU, while this one is idle."""
    busy, others = number(facts, "idle_utilization") or 0.0, number(facts, "other_processes") or 0
    if busy >= BUSY:
        who = f"{others:.0f} other process{'es' * (others != 1)} on it; " if others else ""
        yield "neighbour", f"{who}{percent(busy / 100)} busy before anything ran"


def explain(facts: Facts, slow: Sequence[Line]) -> Iterator[Explanation]:
    """Explain slow lines of a GPU: one cause for all computing instruments, and one for each other instrument.

    It is the most frequent cause, with the numbers of the line that is farthest from its expected rate.
    """
    if slow and (neighbours := list(neighbour(facts))):
        yield from neighbours
        return
    groups: dict[str, dict[str, list[Line]]] = {}
    for line in sorted(slow, key=lowest_share):
        group = "compute" if line.instrument in COMPUTE else line.instrument
        groups.setdefault(group, {}).setdefault(cause_of(line, facts), []).append(line)
    explained: dict[str, str] = {}
    for causes in groups.values():
        cause, lines = max(causes.items(), key=lambda pair: len(pair[1]))
        explained.setdefault(cause, numbers(lines[0], facts))
    yield from explained.items()


def slow_links(slow: Sequence[Line]) -> Iterator[tuple[str, str]]:
    """Slow pairs of GPUs with their numbers, or the one GPU that is part of all of them."""
    pairs = {line.gpu: numbers(line, {}) for line in sorted(slow, key=lowest_share)}
    common = set.intersection(*(set(pair.split("-")) for pair in pairs)) if pairs else set()
    if len(common) == 1:
        pair, shown = next(iter(pairs.items()))
        pairs = {common.pop(): f"{shown}, on GPUs {pair}; slow with {len(pairs)} other GPUs"}
    yield from pairs.items()


def lowest_share(line: Line) -> float:
    """A line's share of its reference, or of the other GPUs' rate if that is lower."""
    return min(share for share in (line.share, line.of_others) if share is not None)


def cause_of(line: Line, facts: Facts) -> str:
    """The cause of a slow line, based on its GPU's state during the measurement."""
    clock, expected = line.state.get("sm_clock"), expected_clock(line, facts)
    lower = bool(clock and expected and clock < LOWER_CLOCK * expected)
    if line.instrument == "transfers" and narrow(line, facts):
        return "PCIe width"
    if line.instrument in COMPUTE or lower:
        if named(line, HEAT) or hot(line, facts):
            return "heat"
        if named(line, ["HW power brake"]):
            return "power brake"
        if named(line, ["SW power cap"]) and (lower or line.expected is None or line.expected.sm_clock is None):
            return "power limit"
        if lower:
            return "clock limit"
    if line.instrument == "memory":
        own, highest = line.state.get("memory_clock"), number(facts, "max_memory_clock")
        return "memory clock" if own and highest and own < LOWER_MEMORY_CLOCK * highest else "memory"
    return "host" if line.instrument in ("transfers", "launches") else "unknown cause"


def expected_clock(line: Line, facts: Facts) -> float | None:
    """The clock at which the reference was measured, otherwise the GPU's highest."""
    return (line.expected and line.expected.sm_clock) or number(facts, "max_sm_clock")


def named(line: Line, reasons: Iterable[str]) -> bool:
    """Whether the driver named one of some throttle reasons for long enough."""
    return any(line.throttled.get(reason, 0.0) >= NAMED for reason in reasons)


def hot(line: Line, facts: Facts) -> bool:
    """Whether the GPU was at the temperature at which it slows down."""
    limit = number(facts, "slowdown_temperature")
    return limit is not None and line.state.get("temperature", 0.0) >= limit


def narrow(line: Line, facts: Facts) -> bool:
    """Whether the PCIe link was narrower or slower than the GPU and its slot allow."""
    highest = (number(facts, "max_link_width"), number(facts, "max_link_generation"))
    own = (line.state.get("link_width"), line.state.get("link_generation"))
    return any(most and is_ and is_ < most for most, is_ in zip(highest, own, strict=True))


def numbers(line: Line, facts: Facts) -> str:
    """The numbers of a line that show why it is slow."""
    parts = []
    if line.share is not None and line.expected is not None:
        value = f"{significant(line.expected.value)} {line.unit}"
        parts.append(f"{percent(line.share)} of {value} ({line.expected.source})")
    if line.of_others is not None:
        parts.append(f"{percent(line.of_others)} of the other GPUs' rate")
    for name, (words, bound, instrument) in READINGS.items():
        if name in line.state and instrument in ("", line.instrument):
            most = expected_clock(line, facts) if name == "sm_clock" else number(facts, bound)
            parts.append(words.format(f"{line.state[name]:.0f}" + (f" of {most:.0f}" if most else "")))
    if line.throttled:
        reasons = [f"{reason} for {percent(share)} of the time" for reason, share in line.throttled.items()]
        parts.append(f"throttle reason: {', '.join(reasons)}")
    return f"{line.instrument}, {line.work}: {', '.join(parts)}"


def percent(share: float) -> str:
    """A share in a sentence."""
    return f"{100 * share:.0f}\u202f%"
