"""A card as JSON: what was measured, what was expected, and the verdict, by report/card.schema.json."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.machine import machine_label
from scripts.card.expected import Expected, Key, by_sheet, recorded
from scripts.card.lines import Facts, Line, facts_of, lines_of
from scripts.card.verdict import ORDER, Judged, Verdict, judge

ROOT = Path(__file__).parents[2]
SCHEMA = Path("report/card.schema.json")
VERSION = 1
ORIGIN = ("gpu", "gpu_memory", "cpu", "driver", "cuda", "cudnn", "torch", "triton", "flash_attn", "python", "utc")
"""Provenance columns that a card quotes."""
MOST_LETTERS = 200
"""Of a complaint, which may quote anybody's card."""
DIGITS = 5
"""Significant digits of a number."""


def card_of(rows: Sequence[Any], references: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the card of a machine from the rows of its measurements.

    Args:
        rows: the rows, all of one launch.
        references: the recorded cards of the same model; there may be none.

    Raises:
        ValueError: no work was measured at all.
    """
    lines, facts = lines_of(rows), facts_of(rows)
    if not lines:
        raise ValueError("the card has no row of a work; allowed: rows that `snakemake card` has measured")
    first = rows[0]
    expected = expectations(first.gpu, lines, facts, references)
    verdict = judge(lines, facts, expected, tf32=first.tf32, cuda=first.cuda if first.gpu else "")
    gpus = [gpu for gpu in dict.fromkeys([*facts, *(line.gpu for line in lines)]) if "-" not in gpu]
    sources = sorted({each.source for each in expected.values()}, reverse=True)  # recorded before data sheet
    return {
        "version": VERSION,
        "machine": machine_label(first.gpu),
        **{name: getattr(first, name) for name in ORIGIN},
        "commit": first.git_commit,
        "dirty": bool(first.git_dirty),
        "revisions": first.revisions,
        "seconds": rounded(first.startup_seconds + sum(row.mean for row in rows if row.metric == "wall")),
        "verdict": {
            "outcome": verdict.outcome,
            "sentence": verdict.sentence,
            "findings": [asdict(finding) for finding in verdict.findings],
        },
        "reference": {
            "source": sources[0] if sources else "none",
            "cards": max((each.cards for each in expected.values()), default=0),
        },
        "gpus": [of_gpu(gpu, facts.get(gpu, Facts()), verdict) for gpu in gpus],
        "lines": [of_line(each) for each in verdict.lines],
    }


def expectations(
    gpu: str, lines: Sequence[Line], facts: Mapping[str, Facts], references: Sequence[Mapping[str, Any]]
) -> dict[Key, Expected]:
    """The expected rate of each work: by recorded cards of the model, or else by its data sheet; nothing of a CPU."""
    model = gpu_of(gpu)
    return (by_sheet(model, lines, facts) if model else {}) | recorded(references)


def of_gpu(gpu: str, facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """The part of a card about one GPU, or about the CPU."""
    return {"gpu": gpu, "outcome": verdict.of(gpu), "facts": dict(facts.known), "unknown": dict(facts.unknown)}


def of_line(judged: Judged) -> dict[str, Any]:
    """The part of a card about one work on one GPU."""
    line, expected = judged.line, judged.expected
    content = asdict(line)
    content |= {"value": rounded(line.value), "spread": rounded(line.spread)}
    for group in ("state", "throttled"):
        content[group] = {name: rounded(value) for name, value in content[group].items()}
    return {
        **content,
        "expected": rounded(expected.value) if expected else None,
        "margin": rounded(expected.margin) if expected else None,
        "share": rounded(judged.share),
        "of_others": rounded(judged.of_others),
        "slow": judged.slow,
    }


def is_of(card: Mapping[str, Any], rows: Sequence[Any]) -> bool:
    """Whether a card says what its rows give; what was expected, and so the verdict, depends on other cards too."""
    try:
        made = card_of(rows, [])
    except (ArithmeticError, LookupError, TypeError, ValueError):  # rows that are valid only one by one
        return False
    return without_references(card) == without_references(made)


def without_references(card: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a card that its rows alone determine."""
    kept = {key: value for key, value in card.items() if key not in ("verdict", "reference")}
    for group, judged in (("gpus", ("outcome",)), ("lines", ("expected", "margin", "share", "slow"))):
        kept[group] = [{key: value for key, value in part.items() if key not in judged} for part in card[group]]
    return kept


def rounded(value: float | None) -> float | None:
    """A number with as many digits as mean anything."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def check(card: Any, source: str) -> None:
    """Check a card against the schema.

    Raises:
        ValueError: its first mistake, in a sentence that begins with the source.
    """
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / SCHEMA).read_text(encoding="utf-8")))
    if error := jsonschema.exceptions.best_match(validator.iter_errors(card)):
        where = ".".join(str(part) for part in error.absolute_path) or "it"
        raise ValueError(f"{source}: {where}: {error.message[:MOST_LETTERS]}; allowed: a card by {SCHEMA}")


def read_card(path: Path) -> dict[str, Any]:
    """Read a card.

    Raises:
        ValueError: the file is not JSON, or no card, in one sentence.
    """
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}; allowed: a card by {SCHEMA}") from None
    check(card, str(path))
    return dict(card)


def references_of(gpu: str, cpu: str, recorded_folder: Path) -> list[dict[str, Any]]:
    """Read the recorded cards that a card is compared with, oldest first."""
    folder = recorded_folder / machine_label(gpu) / "card"
    return references_among(map(read_card, sorted(folder.glob("*.json"))), gpu, cpu)


def references_among(cards: Iterable[dict[str, Any]], gpu: str, cpu: str) -> list[dict[str, Any]]:
    """The cards without a fault of a GPU model or, without one, of a CPU model."""
    return [
        card
        for card in cards
        if card["gpu"] == gpu and (gpu or card["cpu"] == cpu) and card["verdict"]["outcome"] not in ORDER
    ]
