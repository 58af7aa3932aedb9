"""Make a machine's card from its rows: card.pdf and card.html.

Launch: python -m scripts.card results/nvidia-h200/raw/card/20261124T070130-all.csv results/nvidia-h200
"""

import sys
from pathlib import Path

from cs336_systems.record.machine import machine_label
from scripts.card.figure import draw
from scripts.card.page import context
from scripts.card.record import RECORDED, read_cards, read_run
from scripts.card.verdict import Verdict, decide, decide_in_order
from scripts.stages.short_page import REPORT, inline, write_pages
from scripts.stages.writeup import environment


def write_card(csvs: list[Path], folder: Path) -> Verdict:
    """Write the card for the rows of some CSV files into a folder, and return its verdict.

    Raises:
        ValueError: rows, or a recorded run, that cannot be read, in one sentence; nothing is written then.
    """
    rows = read_run(csvs)
    machine = machine_label(rows[0].gpu)
    verdict = decide(rows, decide_in_order(read_cards(RECORDED / machine, machine)).values())
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "card.svg"
    shown = context(verdict, inline(picture) if draw(rows, picture) else "")
    write_pages(environment(REPORT).get_template("card.typ.j2").render(**shown), folder, "card")
    return verdict


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"{' '.join(sys.argv[1:])!r} is not enough; allowed: the CSV files of one card, and a folder")
    *csvs, folder = map(Path, sys.argv[1:])
    try:
        verdict = write_card(csvs, folder)
    except ValueError as error:
        sys.exit(str(error))
    print(verdict.sentence if verdict.findings else f"{verdict.outcome.capitalize()}. {verdict.sentence}")
    for finding in verdict.findings:
        print(f"  {finding.cause}: {finding.numbers}")
    print(f"The card is {folder / 'card.pdf'} and {folder / 'card.html'}.")
