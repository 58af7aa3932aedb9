"""Make a machine's card of its rows: card.json, card.pdf and card.html.

Launch: python -m scripts.card results/nvidia-h200/raw/card/all.csv results/nvidia-h200
"""

import json
import sys
from pathlib import Path
from typing import Any

from cs336_systems.experiments.card import Card
from cs336_systems.record.rows import read_jobs
from scripts.card.document import card_of, check, references_of
from scripts.card.figure import draw
from scripts.card.page import context
from scripts.stages.short_page import REPORT, inline, write_pages
from scripts.stages.writeup import environment

RECORDED = Path("recorded")


def write_card(csvs: list[Path], folder: Path, recorded: Path = RECORDED) -> dict[str, Any]:
    """Write the card of the rows of some CSV files into a folder, and return it.

    Raises:
        ValueError: rows or a recorded card that cannot be read, in one sentence; nothing is written then.
    """
    rows: list[Any] = list(read_jobs(Card, sorted(csvs)))
    if not rows:
        raise ValueError(f"{csvs[0]} has no row; allowed: rows that `snakemake card` has measured")
    card = card_of(rows, references_of(rows[0].gpu, rows[0].cpu, recorded))
    check(card, "card.json")
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "card.svg"
    shown = context(card, inline(picture) if draw(rows, picture) else "")
    write_pages(environment(REPORT).get_template("card.typ.j2").render(**shown), folder, "card")
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return card


if __name__ == "__main__":
    *csvs, folder = map(Path, sys.argv[1:])
    try:
        card = write_card(csvs, folder)
    except ValueError as error:
        sys.exit(str(error))
    verdict = card["verdict"]
    print(f"{verdict['outcome']}: {verdict['sentence']}")
    for finding in verdict["findings"]:
        print(f"  {finding['cause']}: {finding['evidence']}")
    print(f"The card is {folder / 'card.pdf'}, {folder / 'card.html'} and {folder / 'card.json'}.")
