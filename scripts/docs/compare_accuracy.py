"""How often comparisons are wrong, and which differences they detect: the table of docs/compare.md.

Launch: python -m scripts.docs.compare_accuracy [gpu=FOLDER] [cpu=FOLDER], which writes the table into docs/compare.md.

Its first row uses the pairs of unmodified runs in the history of recorded/, each compared by a model that was fitted
without its run; a folder has launches of the same jobs, FOLDER/1/raw, FOLDER/2/raw and so on. A slowdown is planted in
a tenth of the cells.
"""

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
from pandas import DataFrame

from cs336_systems.compare.comparison import compare
from cs336_systems.compare.results import read_results
from cs336_systems.compare.speed import FASTER, SLOWER
from cs336_systems.compare.statistics import CHANGED, Difference, decide, difference
from scripts.calibration.pairs import Pair, from_history
from scripts.calibration.run_to_run import fit
from scripts.docs import markdown

PAGE = Path("docs/compare.md")
COLUMNS = (
    "unchanged runs",
    "comparisons",
    "times with a verdict",
    "wrongly faster or slower",
    "can detect 5 %",
    "detected, of the detectable planted slowdowns",
    "detected, of all planted slowdowns",
    "wrong verdicts on the other times",
)
FOLDS = 5
SLOWDOWN = 0.05
PLANTINGS = 200


@dataclass(frozen=True)
class ErrorRates:
    """Verdicts on unchanged runs, and the share of planted slowdowns that were detected."""

    comparisons: int
    times: int
    wrong: int
    """Number of verdicts "faster" or "slower" on unchanged runs."""
    resolvable: float
    """Share of the times with a verdict that can resolve the slowdown."""
    detected: float
    """Share of the detectable planted slowdowns that were called slower."""
    detected_of_all: float
    wrong_others: float
    """Share of the others that were called faster or slower."""

    def line(self, name: str) -> list[str]:
        """A line of the table."""
        shares = [self.resolvable, self.detected, self.detected_of_all, self.wrong_others]
        texts = [f"{share:.1%}" if not math.isnan(share) else "–" for share in shares]
        wrong = f"{self.wrong} ({self.wrong / self.times:.2%})"
        return [name, str(self.comparisons), str(self.times), wrong, *texts]


def error_rates(comparisons: Sequence[Sequence[Difference]], plantings: int = PLANTINGS) -> ErrorRates:
    """The verdicts on comparisons of unchanged runs, without and with randomly planted slowdowns, many times."""
    generator = numpy.random.default_rng(0)
    wrong = sum(verdict in (FASTER, SLOWER) for each in comparisons for verdict in decide(each))
    verdicts = []
    for each, _ in itertools.product(comparisons, range(max(1, plantings // len(comparisons)))):
        chosen = set(generator.choice(len(each), max(1, round(CHANGED * len(each))), replace=False).tolist())
        shifted = [
            replace(one, log_ratio=one.log_ratio + math.log1p(SLOWDOWN)) if index in chosen else one
            for index, one in enumerate(each)
        ]
        verdicts += [
            (index in chosen, shifted[index].resolution() <= SLOWDOWN, verdict)
            for index, verdict in enumerate(decide(shifted))
        ]
    table = DataFrame(verdicts, columns=["planted", "resolved", "verdict"])
    planted, others = table[table["planted"]], table[~table["planted"]]
    every = [one for each in comparisons for one in each]
    return ErrorRates(
        comparisons=len(comparisons),
        times=len(every),
        wrong=wrong,
        resolvable=float(numpy.mean([one.resolution() <= SLOWDOWN for one in every])),
        detected=(planted[planted["resolved"]]["verdict"] == SLOWER).mean(),
        detected_of_all=(planted["verdict"] == SLOWER).mean(),
        wrong_others=others["verdict"].isin([FASTER, SLOWER]).mean(),
    )


def held_out(pairs: Sequence[Pair]) -> list[Difference]:
    """Each pair's difference in the deviations of a model that was fitted without the pairs of its runs."""
    runs = sorted({pair.runs for pair in pairs})
    folds = [set(runs[start::FOLDS]) for start in range(FOLDS)]
    differences = []
    for fold in folds:
        model = fit([pair for pair in pairs if pair.runs not in fold])
        differences += [difference(pair.a, pair.b, model) for pair in pairs if pair.runs in fold]
    return differences


def of_launches(folder: Path) -> list[list[Difference]]:
    """The differences with a verdict between each pair of launches in a folder.

    Raises:
        ValueError: it has fewer than two.
    """
    launches = [read_results(str(path)) for path in sorted(folder.iterdir()) if (path / "raw").is_dir()]
    if len(launches) < 2:
        raise ValueError(
            f"{folder} has {len(launches)} launches; allowed: two or more, FOLDER/1/raw, FOLDER/2/raw, ..."
        )
    compared = [compare(a, b) for a, b in itertools.combinations(launches, 2)]
    return [[cell.difference for cell in each.cells if cell.comparable] for each in compared]


def rows(folders: dict[str, Path], page: str) -> Iterator[list[str]]:
    """The lines of the table; for launches without a given folder, the page's present line."""
    yield error_rates([held_out(from_history())]).line(
        "H200s, pairs in the record's history (models fitted without them)"
    )
    names = {"gpu": "one GPU, pairs of launches", "cpu": "two loaded cores, pairs of launches"}
    for device, name in names.items():
        if device in folders:
            yield error_rates(of_launches(folders[device])).line(name)
        else:
            yield from (line[2:-2].split(" | ") for line in page.splitlines() if line.startswith(f"| {name} |"))


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    text = PAGE.read_text(encoding="utf-8")
    body = rows({device: Path(folder) for device, folder in given.items()}, text)
    table = markdown.table(COLUMNS, body, right=range(1, len(COLUMNS)))
    print(table, end="")
    PAGE.write_text(markdown.with_table(text, "accuracy", table), encoding="utf-8")
