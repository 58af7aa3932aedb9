"""The verdict on a card: healthy, slowed, misconfigured or faulty, by what, and which numbers show it.

A pure function of lines, facts and what is expected: nothing is read or measured here.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cs336_systems.compare import speed
from scripts.card.causes import Finding, explain, faults, misconfigurations, neighbour, percent, slow_links
from scripts.card.expected import Expected, Key, margin_of
from scripts.card.lines import Facts, Line

HEALTHY, SLOWED, MISCONFIGURED, FAULTY, UNTOLD = "healthy", "slowed", "misconfigured", "faulty", "cannot be told"
ORDER = (FAULTY, SLOWED, MISCONFIGURED)
"""From the worst on."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A line with what was expected of it."""

    line: Line
    expected: Expected | None = None
    share: float | None = None
    """Its rate as a share of the expected one."""
    of_others: float | None = None
    """Its rate as a share of the median of the other GPUs here."""
    slow: bool | None = None
    """Whether it is lower than differences between cards explain; None if nothing was expected of it."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on all GPUs of a machine."""

    outcome: str
    sentence: str
    findings: Sequence[Finding]
    lines: Sequence[Judged]

    def of(self, gpu: str) -> str:
        """The outcome of one GPU."""
        outcomes = {finding.outcome for finding in self.findings if gpu in finding.gpu.split("-")}
        compared = any(each.slow is not None for each in self.lines if each.line.gpu == gpu)
        return worst(outcomes) or (HEALTHY if compared else UNTOLD)


def judge(
    lines: Sequence[Line], facts: Mapping[str, Facts], expected: Mapping[Key, Expected], *, tf32: bool, cuda: str
) -> Verdict:
    """Judge the GPUs of a machine.

    Args:
        lines: what was measured.
        facts: what the driver reports, by the GPU's number.
        expected: what each work should reach; it may be empty.
        tf32: whether fp32 matmuls were seen to round their inputs to TF32.
        cuda: the version of CUDA that PyTorch was built for; empty on a CPU.
    """
    judged = [judge_line(line, expected.get((line.instrument, line.work)), lines) for line in lines]
    findings: list[Finding] = []
    for gpu in dict.fromkeys([*facts, *(line.gpu for line in lines)]):
        own = [each for each in judged if each.line.gpu == gpu]
        known = facts.get(gpu, Facts())
        findings += faults(gpu, known, [each.line for each in own])
        wrong_setup = list(misconfigurations(gpu, known, tf32=tf32, cuda=cuda))
        findings += wrong_setup
        if any(finding.cause == "MIG" for finding in wrong_setup):
            continue  # A part of a GPU is not as fast as the whole.
        slow = [each for each in own if each.slow]
        if not any(each.slow is not None for each in own):
            findings += neighbour(gpu, known)
        findings += explain(gpu, known, [each for each in slow if each.line.instrument != "all_reduce"])
    findings += slow_links([each for each in judged if each.slow and each.line.instrument == "all_reduce"])
    outcome = worst(finding.outcome for finding in findings)
    if not outcome:
        outcome = HEALTHY if any(each.slow is not None for each in judged) else UNTOLD
    return Verdict(outcome=outcome, sentence=sentence(outcome, findings, judged), findings=findings, lines=judged)


def judge_line(line: Line, expected: Expected | None, lines: Iterable[Line]) -> Judged:
    """Compare a line with what is expected of it, and with the same work on the other GPUs."""
    if line.value is None:
        return Judged(line=line, expected=expected)
    others = [
        each.value
        for each in lines
        if (each.instrument, each.work) == (line.instrument, line.work) and each.gpu != line.gpu and each.value
    ]
    share = line.value / expected.value if expected else None
    of_others = line.value / statistics.median(others) if others else None
    below = [slower(share, expected.margin)] if expected and share else []
    # Pairs of GPUs may be linked differently, unless the data sheet or a recorded card has a link for all.
    if of_others and (expected or line.instrument != "all_reduce"):
        below.append(slower(of_others, margin_of(line.instrument, line.work)))
    return Judged(line=line, expected=expected, share=share, of_others=of_others, slow=any(below) if below else None)


def slower(share: float, margin: float) -> bool:
    """Whether a share of the expected rate is below it by more than the margin."""
    return speed.outcome(-math.log(share), tie=-math.log1p(-margin), reach=0.0) == speed.SLOWER


def worst(outcomes: Iterable[str]) -> str:
    """The worst of some outcomes; empty if there are none."""
    found = set(outcomes)
    return next((outcome for outcome in ORDER if outcome in found), "")


def sentence(outcome: str, findings: Sequence[Finding], lines: Sequence[Judged]) -> str:
    """The verdict in one sentence."""
    compared = [each for each in lines if each.slow is not None]
    if outcome == UNTOLD:
        return "Nothing to compare with: there is no recorded card of this model, and no data sheet that is listed."
    if outcome == HEALTHY:
        shares = [each.share for each in compared if each.share]
        usual = f"; their median is {percent(statistics.median(shares))} of the reference" if shares else ""
        return f"All {len(compared)} rates that can be compared are as expected{usual}."
    causes = dict.fromkeys(
        f"{finding.cause}{f' (GPU {finding.gpu})' if finding.gpu else ''}"
        for finding in findings
        if finding.outcome == outcome
    )
    word = {FAULTY: "Faulty", SLOWED: "Slowed by", MISCONFIGURED: "Misconfigured"}[outcome]
    return f"{word}{'' if outcome == SLOWED else ':'} {', '.join(causes)}."
