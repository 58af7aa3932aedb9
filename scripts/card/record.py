"""A machine's cards with their rows, as they are made and as they are recorded for later cards to be compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_systems.experiments.card import Card
from cs336_systems.record.rows import digest_path, read_jobs
from scripts.card.document import is_of, read_card


@dataclass(frozen=True, kw_only=True)
class RecordedCard:
    """A card and the rows that it was made from."""

    name: str
    """Its file in the machine's folder of recorded results: card/TIME.json."""
    card: Mapping[str, Any]
    rows: Sequence[Any]


def card_files(folder: Path) -> dict[str, Path]:
    """Name the files of a machine's cards as they are recorded, with those in its folder that hold them.

    Args:
        folder: the machine's recorded results; or its own, with the one card that `snakemake card` made there last.
    """
    files = {f"card/{path.name}": path for path in sorted(folder.glob("card/*"))}
    made = folder / "card.json"
    if made.is_file():
        time = read_card(made)["utc"].partition("+")[0]
        name = f"card/{''.join(letter for letter in time if letter.isalnum())}"
        files[f"{name}.json"] = made
        for csv in sorted(folder.glob("raw/card/*.csv")):
            files |= {f"{name}-{path.name}": path for path in (csv, digest_path(csv))}
    return files


def recorded_content(path: Path, name: str) -> bytes:
    """Read a file that gets a name; a digest names the CSV file next to it."""
    content = path.read_bytes()
    return content.replace(path.stem.encode(), Path(name).stem.encode()) if path.suffix == ".sha256" else content


def read_cards(folder: Path, machine: str) -> list[RecordedCard]:
    """Read the cards of a machine, with their rows.

    Args:
        folder: as for `card_files`.
        machine: the machine's label.

    Raises:
        ValueError: a card or a row that cannot be read, a card that is not what its rows give, or rows without a card.
    """
    files = card_files(folder)
    others = set(files)
    found = []
    for name in sorted(others):
        stem, _, suffix = name.rpartition(".")
        if suffix != "json":
            continue
        csvs = sorted(other for other in others if other.startswith(f"{stem}-") and other.endswith(".csv"))
        card, rows = read_card(files[name]), read_jobs(Card, [files[csv] for csv in csvs], machine)
        if not is_of(card, rows):
            raise ValueError(f"{files[name]}: not the card of its rows; allowed: as `snakemake card` wrote it")
        found.append(RecordedCard(name=name, card=card, rows=rows))
        others -= {name, *csvs, *(f"{csv}.sha256" for csv in csvs)}
    if others:
        raise ValueError(f"{files[min(others)]} belongs to no card; allowed: what `snakemake card` wrote")
    return found
