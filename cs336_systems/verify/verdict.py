"""The verdict on one implementation, by requirement."""

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import torch

from cs336_systems.benchmarks.comparison.exact_attention import TF32
from cs336_systems.benchmarks.comparison.refusal import NO_BACKWARD
from cs336_systems.folder_modules import MissingPackage
from cs336_systems.implementations import Implementation
from cs336_systems.run.failure import describe_end, printable
from cs336_systems.verify.cases import CASES, IGNORES_MASK, Case, Finding, Given, Outcome
from cs336_systems.verify.launcher import Answer, Launcher, Raised, Ranks

RIGHT, WRONG, NOT_THERE, CANNOT_BE_LOADED = "right", "wrong", "not there", "cannot be loaded"
CANNOT_RUN, CRASHED, TIMED_OUT, UNSUPPORTED = "cannot run here", "crashed", "timed out", "not supported"
LIMIT_S = 120
"""Maximum time for all cases of an implementation."""
LONGEST = 300
"""Maximum number of quoted characters of their messages."""
NEEDS_A_GPU = ("cuda", "gpu", "nvidia", "driver", "triton", "accelerator", "nccl")
"""Words in errors of GPU code on a machine without a GPU."""
NO_DRIVER = "active drivers"
"""Part of Triton's message without a GPU, which adds nothing."""
WITHOUT_MASK = ":get_flashattention_autograd_function_pytorch"
"""The adapter whose task in the handout needs no causal mask."""
UNLOADABLE = "it cannot be loaded: "
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
BLOCK_POINTERS = ("make_block_ptr", "advance")
"""Triton names used by the handout's kernel that 3.9 no longer has."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """A case and its outcome."""

    case: str
    requirement: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one implementation, or on a family without one."""

    family: str
    implementation: Implementation | None
    verdict: str
    reason: str = ""
    cases: tuple[CaseResult, ...] = ()

    def of(self, outcome: str, requirement: str = "") -> list[CaseResult]:
        """The cases with an outcome."""
        return [case for case in self.cases if case.outcome == outcome and requirement in ("", case.requirement)]

    def count(self, requirement: str) -> str:
        """How many of a requirement's cases are right, as "n of m"; empty if none ran."""
        tried = [case for case in self.cases if case.requirement == requirement]
        return f"{len(self.of('passed', requirement))} of {len(tried)}" if tried else ""

    @property
    def grouped(self) -> list[tuple[str, str, list[str]]]:
        """Outcome, reason and cases of everything that is not right, grouped by reason."""
        others = [case for case in self.cases if case.outcome != "passed"]
        keys = dict.fromkeys((case.outcome, case.reason) for case in others)
        return [
            (outcome, reason, [case.case for case in others if (case.outcome, case.reason) == (outcome, reason)])
            for outcome, reason in keys
        ]


@cache
def seed() -> int:
    """The seed of all inputs of this process, unknown to code under test."""
    return secrets.randbits(62)


@cache
def given_for(case: Case) -> Given:
    """The inputs of a case."""
    return case.give(case, torch.Generator().manual_seed(seed()))


def verify(
    family: str, implementation: Implementation, folder: Path, log: Path, launcher: Launcher, limit_s: float = LIMIT_S
) -> Verdict:
    """Run an implementation on all cases of its family.

    Its modules are in `folder`; what its processes print is appended to `log`. After `limit_s`, the remaining cases
    have timed out.
    """
    deadline = time.monotonic() + limit_s
    cases: list[CaseResult] = []
    # The handout's cases first: they decide, and the cases beyond it may exceed the time limit.
    in_order = sorted(CASES[family], key=lambda case: (case.ranks, case.requirement != "handout"))
    launch = partial(launcher.launch, family, implementation.path, folder, log, deadline)
    for _, group in groupby(in_order, key=lambda case: case.ranks):
        for case, (outcome, reason) in tried(launch, [*group], deadline):
            if reason == IGNORES_MASK and implementation.path.endswith(WITHOUT_MASK):
                reason = f"{reason}, as the handout's PyTorch version may"
            elif reason == IGNORES_MASK:
                outcome = "failed"
            reason = f"it takes longer than {limit_s:g} s" if outcome == "timed out" else reason
            cases.append(CaseResult(case=case.words, requirement=case.requirement, outcome=outcome, reason=reason))
    verdict, reason = conclude(cases)
    return Verdict(family=family, implementation=implementation, verdict=verdict, reason=reason, cases=tuple(cases))


def tried(launch: Callable[[int], Ranks], cases: Sequence[Case], deadline: float) -> Iterator[tuple[Case, Finding]]:
    """Run cases with the same number of ranks; in new processes after a case without results."""
    left = list(cases)
    while left and time.monotonic() < deadline:
        try:
            ranks = launch(cases[0].ranks)
        except ConnectionError as error:
            yield left.pop(0), ("crashed", str(error))
            continue
        while left:
            case = left.pop(0)
            answers = ranks.run(case.header, given_for(case))
            if all(answer.ok for answer in answers):
                yield case, case.check(case, given_for(case), answers)
                continue
            ends = ranks.end()
            yield case, explain(answers, ends, time.monotonic() >= deadline)
            break
        else:
            ranks.end()
    yield from ((case, ("timed out", "")) for case in left)


def explain(answers: Sequence[Answer], ends: Sequence[int | None], out_of_time: bool) -> Finding:
    """Explain why a case has no results: a rank's exception, else how a process ended, else that time was up."""
    raised = [answer.raised for answer in answers if answer.raised]
    # Errors about waiting for another rank follow from that rank's.
    first = [error for error in raised if not re.search("gloo|NCCL", error.message)]
    if not first and any(answer.ended for answer in answers):
        status = next((end for end in ends if end is not None), None)
        how = "sent an invalid result" if status is None else describe_end(status).partition(" (")[0]
        return "crashed", f"its process {how}"
    if raised:
        return of_error(min(first or raised, key=lambda each: not each.where))
    if out_of_time:
        return "timed out", ""
    return "crashed", "a rank hangs"


def of_error(raised: Raised) -> Finding:
    """The outcome of a case whose code raised an exception."""
    text = f"{raised.message} {raised.where}"
    message = quoted(raised.message)
    if raised.kind == MissingPackage.__name__:
        return "cannot run here", f"{message}{at(raised)}"
    if any(name in text for name in BLOCK_POINTERS) and ("has no attribute" in text or raised.triton):
        return "cannot run here", "this Triton has no block pointers; Triton 3.6 to 3.8 have them"
    if not torch.cuda.is_available() and (raised.triton or any(word in text.lower() for word in NEEDS_A_GPU)):
        return "cannot run here", "it needs a GPU" + ("" if NO_DRIVER in message else f": {message or raised.kind}")
    if raised.kind == "NotImplementedError":
        if NO_BACKWARD in message:
            return "unsupported", "it has no backward pass"
        return "unsupported", message or f"not implemented{at(raised)}"
    if raised.kind == "Unloadable":
        return "failed", f"{UNLOADABLE}{message}{at(raised)}"
    if raised.kind in IMPORT_ERRORS:
        return "failed", f"{UNLOADABLE}{raised.kind}: {message}{at(raised)}"
    if raised.kind == "LookupError" and not raised.where:
        return "failed", message
    return "failed", f"it raises {raised.kind}{': ' if message else ''}{message}{at(raised)}"


def at(raised: Raised) -> str:
    """Where it was raised, in words."""
    return f", at {quoted(raised.where)}" if raised.where else ""


def quoted(text: str) -> str:
    """Untrusted text on one short line, without terminal control characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def conclude(cases: Sequence[CaseResult]) -> tuple[str, str]:
    """Return the verdict and its reason. The handout's cases decide whether it is right; all are counted."""
    handout = [case for case in cases if case.requirement == "handout"]
    first = {case.outcome: case for case in reversed(handout)}
    summary = "; ".join(
        summed_up([case for case in cases if case.requirement == requirement], kind)
        for requirement, kind in (("handout", "handout"), ("beyond", "other"))
    )
    if any(case.reason == TF32 for case in cases if case.outcome == "passed"):
        summary += "; its fp32 results are only as accurate as TF32 matmuls"
    wrong: tuple[tuple[Outcome, str], ...] = (("failed", WRONG), ("crashed", CRASHED), ("timed out", TIMED_OUT))
    for outcome, verdict in wrong:
        if case := first.get(outcome):
            if case.reason.startswith(UNLOADABLE):
                return CANNOT_BE_LOADED, case.reason.removeprefix(UNLOADABLE)
            return verdict, f"{case.case}: {case.reason} ({summary})"
    if "passed" in first:
        reasons = dict.fromkeys(case.reason for case in handout if case.outcome in ("unsupported", "cannot run here"))
        return RIGHT, f"{summary}: {'; '.join(reasons)}" if reasons else summary
    missing = first.get("cannot run here") or first.get("unsupported")
    if not missing:
        return CANNOT_BE_LOADED, "no case was run"
    return (CANNOT_RUN if missing.outcome == "cannot run here" else UNSUPPORTED), missing.reason


def summed_up(cases: Sequence[CaseResult], kind: str) -> str:
    """How many of the supported cases are right, and how many cases are not supported."""
    counts = Counter(case.outcome for case in cases)
    others = counts["unsupported"] + counts["cannot run here"]
    if cases and others == len(cases):
        return f"{others} {kind} case{'s' * (others > 1)} not supported"
    more = f" and {others} not supported" if others else ""
    more += f" and {late} timed out" if (late := counts["timed out"]) else ""
    return f"{counts['passed']} of {len(cases) - others} {kind} cases right{more}"
