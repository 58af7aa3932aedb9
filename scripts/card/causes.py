"""Why a GPU is slow, misconfigured or faulty, by what its driver reports, with the numbers that show it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.card.lines import Facts, Line

if TYPE_CHECKING:
    from scripts.card.verdict import Judged

BUSY = 20.0
"""Percent of the time in which another process must compute to count as a neighbour."""
NAMED = 0.2
"""Share of the time in which the driver must name a throttle reason."""
HEAT = ("HW thermal slowdown", "SW thermal slowdown")
LOWER_CLOCK, LOWER_MEMORY_CLOCK = 0.93, 0.97
"""Shares of the expected clock below which it is what slows a GPU."""
LOWER_LIMIT = 0.99
ENDED = ("CUDA error", "NCCL error", "its process", "it took longer")
"""Parts of messages of a GPU that fails, not of a library that does not support it."""
COMPUTE = ("matmul", "attention", "training")
HOST, LINK = "host", "link to other GPUs"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong with a GPU."""

    outcome: str
    """slowed, misconfigured or faulty."""
    cause: str
    gpu: str
    evidence: str
    """The numbers that show it, in a sentence."""


def faults(gpu: str, facts: Facts, lines: Sequence[Line]) -> Iterator[Finding]:
    """Wrong results, errors of the memory, and works that fail."""

    def fault(cause: str, evidence: str) -> Finding:
        return Finding(outcome="faulty", cause=cause, gpu=gpu, evidence=evidence)

    for line in lines:
        if line.wrong:
            yield fault("wrong results", f"{line.instrument}, {line.work}: {line.message}")
    if errors := facts.number("uncorrected_errors"):
        yield fault("memory errors", f"{errors:.0f} uncorrectable memory errors since the driver was loaded")
    if facts.says("remapping_pending", "on"):
        yield fault("memory errors", "rows of the memory wait to be remapped, which a reset of the GPU does")
    if facts.says("remapping_failed", "on"):
        yield fault("memory errors", "rows of the memory could not be remapped")
    failed = [line for line in lines if line.status == "failed" and any(sign in line.message for sign in ENDED)]
    if failed:
        yield fault("works fail", f"{len(failed)}, first {failed[0].instrument}, {failed[0].work}: {failed[0].message}")


def misconfigurations(gpu: str, facts: Facts, *, tf32: bool, cuda: str) -> Iterator[Finding]:
    """Modes and limits that are not the usual ones; what the driver does not report is none of them."""

    def wrong(cause: str, evidence: str) -> Finding:
        return Finding(outcome="misconfigured", cause=cause, gpu=gpu, evidence=evidence)

    if facts.says("mig", "on"):
        yield wrong("MIG", "the GPU is divided (MIG): one part has only some of its SMs and of its memory's bandwidth")
    limit, default = facts.number("power_limit"), facts.number("default_power_limit")
    if limit and default and limit < LOWER_LIMIT * default:
        yield wrong("power cap", f"the power limit is {limit:g} W, and {default:g} W by default")
    if facts.says("persistence_mode", "off") and not facts.says("display", "on"):
        yield wrong(
            "persistence mode", "persistence mode is off: the first process that needs the GPU waits for the driver"
        )
    mode = facts.known.get("compute_mode", "default")
    if mode != "default":
        yield wrong("compute mode", f"the compute mode is {mode}, and default lets several processes use the GPU")
    driver_cuda = facts.known.get("driver_cuda", "")
    if cuda and driver_cuda and version(driver_cuda) < version(cuda):
        known = facts.known.get("driver", "")
        yield wrong("old driver", f"driver {known} knows CUDA {driver_cuda}, and PyTorch was built for CUDA {cuda}")
    if tf32:
        yield wrong("TF32", "fp32 matmuls round their inputs to TF32 although it is off: see NVIDIA_TF32_OVERRIDE")


def version(text: str) -> tuple[int, ...]:
    """A version to compare."""
    return tuple(int(part) for part in text.split("."))


def neighbour(gpu: str, facts: Facts) -> Iterator[Finding]:
    """Another process that computes on the GPU, or on the CPU, while this one does nothing."""
    busy, others = facts.number("idle_utilization") or 0.0, facts.number("other_processes") or 0
    if busy >= BUSY:
        who = f"{others:.0f} other process{'es' * (others != 1)} on it; " if others else ""
        evidence = f"{who}busy for {percent(busy / 100)} of a second in which nothing was measured"
        yield Finding(outcome="slowed", cause="neighbour", gpu=gpu, evidence=evidence)


def explain(gpu: str, facts: Facts, slow: Sequence["Judged"]) -> Iterator[Finding]:
    """Explain slow lines of a GPU: one cause for all that computes and one for each other instrument.

    It is the one that most of the lines have, by the evidence of the line that is farthest from what is expected.
    """
    if slow and (found := list(neighbour(gpu, facts))):
        yield from found
        return
    groups: dict[str, dict[str, list[Judged]]] = {}
    for each in sorted(slow, key=lowest_share):
        group = "compute" if each.line.instrument in COMPUTE else each.line.instrument
        groups.setdefault(group, {}).setdefault(cause_of(each, facts), []).append(each)
    said: set[str] = set()
    for causes in groups.values():
        cause, lines = max(causes.items(), key=lambda pair: len(pair[1]))
        if cause not in said:
            said.add(cause)
            yield Finding(outcome="slowed", cause=cause, gpu=gpu, evidence=evidence(lines[0], facts))


def slow_links(slow: Sequence["Judged"]) -> Iterator[Finding]:
    """Explain slow pairs of GPUs: by the one GPU that is in all of them, or else pair by pair."""
    pairs = {each.line.gpu: each for each in sorted(slow, key=lowest_share)}
    common = set.intersection(*(set(pair.split("-")) for pair in pairs)) if pairs else set()
    if len(common) == 1:
        first = next(iter(pairs.values()))
        text = f"{evidence(first, Facts())}, on GPUs {first.line.gpu}; slow with {len(pairs)} other GPUs"
        yield Finding(outcome="slowed", cause=LINK, gpu=common.pop(), evidence=text)
        return
    for pair, each in pairs.items():
        yield Finding(outcome="slowed", cause=LINK, gpu=pair, evidence=evidence(each, Facts()))


def lowest_share(each: "Judged") -> float:
    """A line's share of its reference, or of the other GPUs' rate if that is lower."""
    return min(share for share in (each.share, each.of_others) if share is not None)


def cause_of(each: "Judged", facts: Facts) -> str:
    """The cause that slows a line, by its GPU's state meanwhile."""
    line = each.line
    clock, expected = line.state.get("sm_clock"), expected_clock(each, facts)
    lower = bool(clock and expected and clock < LOWER_CLOCK * expected)
    if line.instrument == "transfers" and narrow(line, facts):
        return "PCIe width"
    if line.instrument in COMPUTE or lower:
        if named(line, HEAT) or hot(line, facts):
            return "heat"
        if named(line, ["HW power brake"]):
            return "power brake"
        if named(line, ["SW power cap"]) and (lower or each.expected is None or each.expected.sm_clock is None):
            return "power limit"
        if lower:
            return "clock limit"
    if line.instrument == "memory":
        own, highest = line.state.get("memory_clock"), facts.number("max_memory_clock")
        return "memory clock" if own and highest and own < LOWER_MEMORY_CLOCK * highest else "memory"
    return HOST if line.instrument in ("transfers", "launches") else "unknown cause"


def expected_clock(each: "Judged", facts: Facts) -> float | None:
    """The clock at which the reference was measured, or else the GPU's highest."""
    return (each.expected and each.expected.sm_clock) or facts.number("max_sm_clock")


def named(line: Line, reasons: Iterable[str]) -> bool:
    """Whether the driver named one of some throttle reasons for long enough."""
    return any(line.throttled.get(reason, 0.0) >= NAMED for reason in reasons)


def hot(line: Line, facts: Facts) -> bool:
    """Whether the GPU was at the temperature at which it slows down."""
    limit = facts.number("slowdown_temperature")
    return limit is not None and line.state.get("temperature", 0.0) >= limit


def narrow(line: Line, facts: Facts) -> bool:
    """Whether the PCIe link was narrower or slower than the GPU and its slot allow."""
    highest = (facts.number("max_link_width"), facts.number("max_link_generation"))
    own = (line.state.get("link_width"), line.state.get("link_generation"))
    return any(most and is_ and is_ < most for most, is_ in zip(highest, own, strict=True))


def evidence(each: "Judged", facts: Facts) -> str:
    """The numbers of a line that show why it is slow."""
    line, parts = each.line, []
    if each.share is not None and each.expected is not None:
        parts.append(f"{percent(each.share)} of {each.expected.value:.3g} {line.unit} ({each.expected.source})")
    if each.of_others is not None:
        parts.append(f"{percent(each.of_others)} of the other GPUs here")
    if "sm_clock" in line.state:
        parts.append(f"SM clock {line.state['sm_clock']:.0f}{of(expected_clock(each, facts))} MHz")
    if line.instrument == "memory" and "memory_clock" in line.state:
        parts.append(f"memory clock {line.state['memory_clock']:.0f}{of(facts.number('max_memory_clock'))} MHz")
    if line.instrument == "transfers" and "link_width" in line.state:
        parts.append(f"PCIe x{line.state['link_width']:.0f}{of(facts.number('max_link_width'))} lanes")
        if "link_generation" in line.state:
            most = of(facts.number("max_link_generation"))
            parts.append(f"generation {line.state['link_generation']:.0f}{most}")
    if "power" in line.state:
        parts.append(f"power {line.state['power']:.0f}{of(facts.number('power_limit'))} W")
    if "temperature" in line.state:
        parts.append(f"{line.state['temperature']:.0f} °C")
    reasons = [f"{reason} for {percent(share)} of the time" for reason, share in line.throttled.items()]
    parts.append(f"throttle reason: {', '.join(reasons)}" if reasons else "")
    return f"{line.instrument}, {line.work}: {', '.join(filter(None, parts))}"


def percent(share: float) -> str:
    """A share in a sentence."""
    return f"{100 * share:.0f}\u202f%"


def of(most: float | None) -> str:
    """The upper bound of a number, if it is known."""
    return f" of {most:.0f}" if most else ""
