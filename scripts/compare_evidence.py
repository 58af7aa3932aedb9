"""How often comparisons are wrong, and what they find: the tables of docs/compare.md.

Launch: python -m scripts.compare_evidence [gpu=FOLDER] [cpu=FOLDER], which writes the tables into docs/compare.md.

Its first row is of the pairs of honest runs in the history of recorded/, each judged by a model that was fitted without
its run; a folder has the launches of `scripts.repeated_launches`. A slow-down is planted in a tenth of the cells.
The second table has whole comparisons: the record with itself, with a slow-down planted in its files, and with an
earlier version of its files.
"""

import itertools
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy

from cs336_systems.compare.comparison import Compared, Comparison, compare
from cs336_systems.compare.results import read_results
from cs336_systems.compare.statistics import CHANGED, FASTER, SLOWER, VERDICTS, Difference, difference, judge
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import format_samples, parse_samples
from cs336_systems.record.rows import read_jobs, write_job
from cs336_systems.record.validation import Row
from scripts.honest_pairs import Pair, from_history
from scripts.run_to_run import fit

PAGE = Path("docs/compare.md")
MARKS = "<!-- --8<-- [{}:{}] -->\n"
"""Lines around a table: start or end, and its name."""
RECORDED = Path("recorded/nvidia-h200")
EARLIER = "2233caf^"
"""A commit whose record has attention of FlashAttention-4 b12, and this project's kernels of then."""
EARLIER_EXPERIMENTS = ("flash", "end_to_end", "checkpointing", "kernel_profile")
"""Experiments that can still be read: others have other parameters now."""
COLUMNS = (
    "honest runs",
    "comparisons",
    "times judged",
    "faster or slower, wrongly",
    "can tell 5 %",
    "5 % planted in a tenth: found of those that can tell",
    "of all judged",
    "wrong among the others",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * (len(COLUMNS) - 1)}\n"
WHOLE_HEADER = f"| A | B | times | {' | '.join(VERDICTS)} |\n| --- | --- |{' ---: |' * (1 + len(VERDICTS))}\n"
FOLDS = 5
SLOWDOWN = 0.05
PLANTINGS = 200


@dataclass(frozen=True)
class Evidence:
    """Verdicts on honest runs, and the planted slow-downs that were found."""

    comparisons: int
    judged: int
    wrong: int
    """Verdicts faster or slower on honest runs."""
    can_tell: float
    """Share of the judged times that resolve the slow-down."""
    found: float
    """Share of the planted ones that were called slower, of those that can tell."""
    found_of_all: float
    wrong_others: float
    """Share of the others that were called faster or slower."""

    def line(self, name: str) -> str:
        """A line of the table."""
        shares = [self.can_tell, self.found, self.found_of_all, self.wrong_others]
        texts = [f"{share:.1%}" if not math.isnan(share) else "–" for share in shares]
        wrong = f"{self.wrong} ({self.wrong / self.judged:.2%})"
        return f"| {name} | {self.comparisons} | {self.judged} | {wrong} | {' | '.join(texts)} |\n"


def evidence(comparisons: Sequence[Sequence[Difference]], plantings: int = PLANTINGS) -> Evidence:
    """The verdicts on comparisons of honest runs, without and with a slow-down planted at random, many times."""
    generator = numpy.random.default_rng(0)
    wrong = sum(verdict in (FASTER, SLOWER) for each in comparisons for verdict in judge(each))
    planted = found = able = found_able = others = wrong_others = 0
    for each, _ in itertools.product(comparisons, range(max(1, plantings // len(comparisons)))):
        chosen = set(generator.choice(len(each), max(1, round(CHANGED * len(each))), replace=False).tolist())
        shifted = [
            replace(one, log_ratio=one.log_ratio + math.log1p(SLOWDOWN)) if index in chosen else one
            for index, one in enumerate(each)
        ]
        for index, verdict in enumerate(judge(shifted)):
            if index in chosen:
                resolves = shifted[index].resolution() <= SLOWDOWN
                planted, able = planted + 1, able + resolves
                found, found_able = found + (verdict == SLOWER), found_able + (verdict == SLOWER and resolves)
            else:
                others, wrong_others = others + 1, wrong_others + (verdict in (FASTER, SLOWER))
    every = [one for each in comparisons for one in each]
    return Evidence(
        comparisons=len(comparisons),
        judged=len(every),
        wrong=wrong,
        can_tell=float(numpy.mean([one.resolution() <= SLOWDOWN for one in every])),
        found=found_able / able if able else math.nan,
        found_of_all=found / planted,
        wrong_others=wrong_others / others,
    )


def held_out(pairs: Sequence[Pair]) -> list[Difference]:
    """Each pair's difference in the deviations of a model that was fitted without the pairs of its runs."""
    runs = sorted({pair.runs for pair in pairs})
    folds = [set(runs[start::FOLDS]) for start in range(FOLDS)]
    found = []
    for fold in folds:
        model = fit([pair for pair in pairs if pair.runs not in fold]).model
        found += [difference(pair.a, pair.b, model) for pair in pairs if pair.runs in fold]
    return found


def of_launches(folder: Path) -> list[list[Difference]]:
    """The judged differences of each two launches in a folder.

    Raises:
        ValueError: it has fewer than two.
    """
    launches = [read_results(str(path)) for path in sorted(folder.iterdir()) if (path / "raw").is_dir()]
    if len(launches) < 2:
        raise ValueError(
            f"{folder} has {len(launches)} launches; allowed: two or more, FOLDER/1/raw, FOLDER/2/raw, ..."
        )
    compared = [compare(a, b) for a, b in itertools.combinations(launches, 2)]
    return [[cell.difference for cell in each.cells if cell.judged] for each in compared]


def rows(folders: dict[str, Path], page: str) -> Iterator[str]:
    """The lines of the table; of launches whose folder is not given, the line that the page has."""
    yield evidence([held_out(from_history())]).line("H200s, pairs in the record's history (models fitted without them)")
    names = {"gpu": "one GPU, each two launches", "cpu": "two cores that others load, each two launches"}
    for device, name in names.items():
        if device in folders:
            yield evidence(of_launches(folders[device])).line(name)
        else:
            yield from (line for line in page.splitlines(keepends=True) if line.startswith(f"| {name} |"))


def slowed(row: Row, factor: float) -> Row:
    """A row all of whose samples took longer by a factor."""
    times = {name: getattr(row, name) for name in ("mean", "std", "median", "p20", "p80")}
    scaled = {name: None if value is None else factor * value for name, value in times.items()}
    samples = format_samples([factor * sample for sample in parse_samples(row.samples)])
    return row.model_copy(update={**scaled, "samples": samples})


def planted_copy(folder: Path) -> None:
    """Write the record into a folder, with a tenth of the times slowed down."""
    generator = numpy.random.default_rng(0)
    for name, kind in EXPERIMENTS.items():
        for path in sorted((RECORDED / "raw" / name).glob("*.csv")):
            rows = [
                slowed(row, 1 + SLOWDOWN)
                if row.status == "ok" and row.unit in ("ms", "us") and generator.random() < CHANGED
                else row
                for row in read_jobs(kind, [path])
            ]
            write_job(folder / "raw" / name / path.name, kind, rows)


def whole_comparisons(folder: Path) -> Iterator[str]:
    """The lines of the second table; the compared folders are written into one."""
    shutil.copytree(RECORDED / "raw", folder / "copy/raw")
    planted_copy(folder / "planted")
    raw = [f"{RECORDED}/raw/{name}" for name in EARLIER_EXPERIMENTS]
    archive = subprocess.run(["git", "archive", EARLIER, *raw], capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    (folder / RECORDED).rename(folder / "earlier")
    now = read_results(str(RECORDED))
    copy, planted, earlier = (read_results(str(folder / name)) for name in ("copy", "planted", "earlier"))
    yield whole_line("the record", "itself", compare(now, copy))
    found = compare(now, planted)
    able = [cell for cell in found.cells if was_planted(cell) and cell.difference.resolution() <= SLOWDOWN]
    told = f"{sum(cell.verdict == SLOWER for cell in able)} of {len(able)} that can tell are found"
    yield whole_line("the record", f"the same with {SLOWDOWN:.0%} planted in a tenth of all times: {told}", found)
    yield whole_line(f"its attention, steps and kernels at {EARLIER}", "the record", compare(earlier, now))


def was_planted(cell: Compared) -> bool:
    """Whether a judged time of the record's copy was slowed down."""
    return cell.judged and math.isclose(cell.difference.ratio, 1 + SLOWDOWN, rel_tol=1e-3)


def whole_line(a: str, b: str, compared: Comparison) -> str:
    """A line of the second table."""
    counts = " | ".join(str(compared.count(verdict)) for verdict in VERDICTS)
    return f"| {a} | {b} | {len(compared.cells)} | {counts} |\n"


def with_table(page: str, name: str, lines: Iterable[str]) -> str:
    """The text of the page with a table between its marks."""
    begin, end = MARKS.format("start", name), MARKS.format("end", name)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"{PAGE} has no lines {begin!r} and {end!r}"
    return before + begin + "".join(lines) + end + after


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    text = PAGE.read_text(encoding="utf-8")
    evidence_lines = [HEADER, *rows({device: Path(folder) for device, folder in given.items()}, text)]
    with tempfile.TemporaryDirectory() as kept:
        whole_lines = [WHOLE_HEADER, *whole_comparisons(Path(kept))]
    print("".join([*evidence_lines, "\n", *whole_lines]), end="")
    text = with_table(text, "evidence", evidence_lines)
    PAGE.write_text(with_table(text, "whole", whole_lines), encoding="utf-8")
