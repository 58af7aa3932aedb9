"""Add a machine's card to the recorded ones, which later cards of the model are compared with.

Launch: python -m scripts.card.record results/nvidia-h200
"""

import shutil
import sys
from pathlib import Path

from cs336_systems.record.rows import digest_path
from scripts.card.document import read_card

RECORDED = Path("recorded")


def record(results: Path, recorded: Path = RECORDED) -> list[Path]:
    """Copy the card of a results folder, with the rows that it was made from, and return the copies.

    Raises:
        ValueError: there is no card, or a file that is none.
    """
    source = results / "card.json"
    if not source.is_file():
        raise ValueError(f"{results} has no card.json; allowed: a folder in which `snakemake card` has made one")
    card = read_card(source)
    name = "".join(letter for letter in card["utc"].partition("+")[0] if letter.isalnum())
    folder = recorded / card["machine"] / "card"
    csvs = sorted((results / "raw/card").glob("*.csv"))
    copies = {source: folder / f"{name}.json"}
    for csv in csvs:
        copy = folder / f"{name}-{csv.name}"
        copies |= {csv: copy}
    folder.mkdir(parents=True, exist_ok=True)
    for original, copy in copies.items():
        shutil.copyfile(original, copy)
    for csv in csvs:
        digest = digest_path(csv).read_text(encoding="utf-8").partition(" ")[0]
        digest_path(copies[csv]).write_text(f"{digest}  {copies[csv].name}\n", encoding="utf-8")
    return list(copies.values())


if __name__ == "__main__":
    try:
        for path in record(Path(sys.argv[1])):
            print(path)
    except ValueError as error:
        sys.exit(str(error))
