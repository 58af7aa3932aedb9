"""Compare two result folders cell by cell, or two files of another tool's times.

Launch: python -m cs336_systems.compare A B [--fail-if-slower 5%] [--price 3.50] [--json FILE] [--csv FILE]

A and B are result folders or labels: two machines, two drivers or PyTorch versions, two commits; or files of nvbench or
pytest-benchmark, or CSV files with the columns name and seconds. Exit status: 0; 1 if --fail-if-slower applies to a
time; 2 for bad input.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cs336_systems.compare.comparison import Comparison, compare, compare_samples
from cs336_systems.compare.output import cell_lines, to_csv, to_json, to_text
from cs336_systems.compare.results import read_results
from cs336_systems.compare.samples import FORMATS, read_samples
from cs336_systems.compare.statistics import MARGIN


class OneSentence(argparse.ArgumentParser):
    """A parser whose error is one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def share(text: str) -> float:
    """A percentage above 0 % and below 100 %."""
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a percentage above 0% and below 100%, such as 5%")
    return value


def price(text: str) -> tuple[float, float]:
    """A price per GPU-hour of both sides, or one of each."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2 or not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(
            f"{text!r}; allowed: a price per GPU-hour above 0, such as 3.50, or A's and B's, such as 3.50,2.10"
        )
    return values[0], values[-1]


def parser() -> OneSentence:
    """The command line."""
    command = OneSentence(
        "cs336-systems compare", description="Compare the times of two result folders, or of two files."
    )
    command.add_argument("a", metavar="A", help="a result folder, the label of one in results/ or recorded/, or a file")
    command.add_argument("b", metavar="B", help="the results to compare with A, in the same form")
    command.add_argument(
        "--fail-if-slower",
        type=share,
        metavar="PERCENT",
        help="exit with status 1 if a time is slower by at least this much",
    )
    command.add_argument(
        "--margin", type=share, metavar="PERCENT", help="times that differ by less count as the same (default: 3%%)"
    )
    command.add_argument(
        "--price",
        type=price,
        metavar="PRICE[,PRICE]",
        help="price of a GPU-hour: one for both, or one for A and one for B",
    )
    command.add_argument(
        "--on",
        choices=["cpu", "gpu"],
        help="the device that other tools' files timed (default: gpu for nvbench, else cpu)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write a CSV with one line per cell")
    return command


def compared(options: argparse.Namespace) -> Comparison:
    """Read both sides and compare them.

    Raises:
        ValueError: they cannot be compared, or an output would overwrite an input, in one sentence.
    """
    margin = options.margin or MARGIN
    files = [Path(side).is_file() for side in (options.a, options.b)]
    if all(files):
        if options.price:
            raise ValueError("price is given, but files have no token counts; allowed: prices for result folders")
        first, second = read_samples(options.a), read_samples(options.b)
        refuse_outputs(options, first.path, second.path)
        on_gpu = options.on == "gpu" if options.on else first.on_gpu and second.on_gpu
        return compare_samples(first, second, on_gpu=on_gpu, margin=margin)
    if any(files) or options.on:
        raise ValueError(
            f"{options.a} and {options.b} are not two files; allowed: two result folders, or two files, each {FORMATS}"
        )
    a, b = read_results(options.a), read_results(options.b)
    refuse_outputs(options, a.raw, b.raw)
    price_a, price_b = options.price or (None, None)
    return compare(a, b, margin=margin, price_a=price_a, price_b=price_b)


def refuse_outputs(options: argparse.Namespace, *read: Path) -> None:
    """Refuse to overwrite an input, or to write both outputs into one file.

    Raises:
        ValueError: the options request it, in one sentence.
    """
    outputs = {name: getattr(options, name) for name in ("json", "csv") if getattr(options, name)}
    if len({path.resolve() for path in outputs.values()}) < len(outputs):
        raise ValueError(f"json and csv are both {options.csv}; allowed: different files")
    for name, path in outputs.items():
        for source in read:
            if path.resolve().is_relative_to(source.resolve()):
                raise ValueError(f"{name} is {path}, which is in the input {source}; allowed: another file")


def write(path: Path | None, text: Callable[[], str]) -> None:
    """Write a text into a file, if one is named."""
    if path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, write, and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        comparison = compared(options)
        write(options.json, lambda: json.dumps(to_json(comparison)))
        write(options.csv, lambda: to_csv(comparison))
    except (ValueError, OSError) as error:
        print(f"cs336-systems compare: {error}", file=sys.stderr)
        return 2
    print(to_text(comparison))
    if options.fail_if_slower and (slower := comparison.slower_by(options.fail_if_slower)):
        print(f"\n{len(slower)} slower by {options.fail_if_slower:.0%} or more:", file=sys.stderr)
        print("\n".join(cell_lines(slower)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
