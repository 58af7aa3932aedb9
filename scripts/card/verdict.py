"""The verdict on a card: healthy, slowed, misconfigured or faulty, with the cause and the numbers that show it.

A pure function of rows: nothing is read or measured here.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cs336_systems.compare.speed import UNDECIDED
from scripts.card.causes import LINK, explain, faults, misconfigurations, neighbour, percent, slow_links
from scripts.card.expected import compared, expectations
from scripts.card.lines import Facts, Line, facts_of, lines_of

HEALTHY = "healthy"
FAULTY, SLOWED, MISCONFIGURED = ORDER = ("faulty", "slowed", "misconfigured")
"""From the worst to the best."""
LINKED = "all_reduce"
"""The instrument that measures pairs of GPUs."""


class Finding(NamedTuple):
    """A problem with a GPU."""

    outcome: str
    """slowed, misconfigured or faulty."""
    cause: str
    gpu: str
    numbers: str
    """The numbers that show it, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on all GPUs of a machine."""

    rows: Sequence[Any]
    """The rows that it is based on."""
    facts: Mapping[str, Facts]
    """The driver's reports, by the GPU's number."""
    lines: Sequence[Line]
    findings: Sequence[Finding]

    @property
    def gpus(self) -> list[str]:
        """The numbers of the GPUs; an empty one for a CPU."""
        return [gpu for gpu in all_gpus(self.facts, self.lines) if "-" not in gpu]

    @property
    def outcome(self) -> str:
        """The worst outcome of all GPUs."""
        return worst(self.findings, self.lines)

    def of(self, gpu: str) -> str:
        """The outcome of one GPU."""
        findings = [finding for finding in self.findings if gpu in finding.gpu.split("-")]
        return worst(findings, [line for line in self.lines if line.gpu == gpu])

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.outcome == UNDECIDED:
            return "Nothing to compare with: no card of this model is recorded, and its data sheet is not listed."
        if self.outcome == HEALTHY:
            compared = [line.share for line in self.lines if line.slow is not None]
            shares = [share for share in compared if share]
            usual = f" (median: {percent(statistics.median(shares))} of the reference)" if shares else ""
            return f"All {len(compared)} comparable rates are as expected{usual}."
        causes = dict.fromkeys(
            f"{finding.cause}{f' (GPU {finding.gpu})' if finding.gpu else ''}"
            for finding in self.findings
            if finding.outcome == self.outcome
        )
        word = {FAULTY: "Faulty:", SLOWED: "Slowed by", MISCONFIGURED: "Misconfigured:"}[self.outcome]
        return f"{word} {', '.join(causes)}."


def decide(rows: Sequence[Any], earlier: Iterable[Verdict] = ()) -> Verdict:
    """Decide the state of a machine's GPUs.

    Args:
        rows: the rows of a run; at least one.
        earlier: the verdicts on other runs. Those without a fault on the same model are the reference.
    """
    measured, facts = lines_of(rows), facts_of(rows)
    references = [line for other in earlier if is_reference(other, rows[0]) for line in other.lines]
    expected = expectations(rows[0].gpu, measured, facts, references)
    lines = [compared(line, expected.get(line.key), measured) for line in measured]
    findings = [finding for gpu in all_gpus(facts, lines) for finding in findings_on(gpu, rows[0], facts, lines)]
    links = slow_links([line for line in lines if line.slow and line.instrument == LINKED])
    findings += [Finding(SLOWED, LINK, gpu, numbers) for gpu, numbers in links]
    return Verdict(rows=rows, facts=facts, lines=lines, findings=findings)


def decide_in_order(runs: Mapping[str, Sequence[Any]]) -> dict[str, Verdict]:
    """Decide the state in each run by name, starting with the oldest, from the previous ones."""
    verdicts: dict[str, Verdict] = {}
    for name in sorted(runs, key=lambda name: str(runs[name][0].utc)):
        verdicts[name] = decide(runs[name], verdicts.values())
    return verdicts


def is_reference(verdict: Verdict, row: Any) -> bool:
    """Whether a run without a fault was on the GPU model of a row or, without a GPU, on its CPU model."""
    first = verdict.rows[0]
    return verdict.outcome not in ORDER and first.gpu == row.gpu and bool(row.gpu or first.cpu == row.cpu)


def all_gpus(facts: Iterable[str], lines: Iterable[Line]) -> list[str]:
    """The GPUs, and pairs of them, with facts or lines."""
    return list(dict.fromkeys([*facts, *(line.gpu for line in lines)]))


def findings_on(gpu: str, origin: Any, facts: Mapping[str, Facts], lines: Iterable[Line]) -> Iterator[Finding]:
    """The problems of one GPU, without slow links to others."""
    reported, own = facts.get(gpu, {}), [line for line in lines if line.gpu == gpu]
    slow = [line for line in own if line.slow and line.instrument != LINKED]
    explanations = {
        FAULTY: faults(reported, own),
        MISCONFIGURED: misconfigurations(reported, tf32=origin.tf32, cuda=origin.cuda),
    }
    if reported.get("mig") != "on":  # A part of a GPU is slower than the whole.
        nothing_compared = all(line.slow is None for line in own)
        explanations[SLOWED] = neighbour(reported) if nothing_compared else explain(reported, slow)
    for outcome, explained in explanations.items():
        for cause, numbers in explained:
            yield Finding(outcome, cause, gpu, numbers)


def worst(findings: Iterable[Finding], lines: Iterable[Line]) -> str:
    """The worst outcome of the findings; without findings, whether anything could be compared."""
    outcomes = {finding.outcome for finding in findings}
    usual = HEALTHY if any(line.slow is not None for line in lines) else UNDECIDED
    return next((outcome for outcome in ORDER if outcome in outcomes), usual)
