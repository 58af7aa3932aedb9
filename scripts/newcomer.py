"""Time what a newcomer waits for: installation and report, the recorded report, an edited template, the tests.

Launch: python -m scripts.newcomer FOLDER [STEP ...], which clones the last commit into a new folder, or goes on in one
from before, and prints a table of wall time and of processor time, which other load changes less.
"""

import argparse
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from scripts import markdown

RECORDED = "--config recorded=nvidia-h200"
SNAKEMAKE = ".venv/bin/python -m snakemake"
TEMPLATE = "report/sections/torch_compile.typ.j2"


@dataclass(frozen=True)
class Step:
    """One thing that a newcomer does."""

    does: str
    command: str
    wanted: float | None
    """Seconds on two cores that are otherwise idle."""
    edits: str = ""
    """A template that has been edited before."""
    removes: str = ""
    """A folder that is not there before."""


STEPS = {
    "make": Step("install, measure and typeset", "make", 360),
    "again": Step("the same with nothing to do", "make", None),
    "recorded": Step("the recorded report", f"{SNAKEMAKE} {RECORDED}", 20, removes="results/recorded"),
    "template": Step("an edited template", f"{SNAKEMAKE} writeup", 10, TEMPLATE),
    "recorded_template": Step("the same of the recorded report", f"{SNAKEMAKE} writeup {RECORDED}", 10, TEMPLATE),
    "test": Step("the tests", "make test", 240),
}


def timed(step: Step, clone: Path) -> tuple[float, float, int]:
    """Wall time and processor time of a step in a clone, seconds, and its exit status."""
    if step.removes:
        shutil.rmtree(clone / step.removes, ignore_errors=True)
    if step.edits:  # A new date alone is no edit to Snakemake.
        with (clone / step.edits).open("a", encoding="utf-8") as template:
            template.write(f"<# {time.time()} #>\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    before, start = os.times(), time.monotonic()
    done = subprocess.run(step.command.split(), cwd=clone, env=environment, check=False)
    after, end = os.times(), time.monotonic()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return end - start, processor, done.returncode


def table(clone: Path, names: list[str]) -> str:
    """A table of the named steps, one after another."""
    body = []
    for name in names:
        step = STEPS[name]
        wall, processor, status = timed(step, clone)
        wanted = "–" if step.wanted is None else f"{step.wanted:.0f}"
        failed = f" (exit {status})" if status else ""
        body.append([step.does, f"`{step.command}`", wanted, f"{wall:.1f}{failed}", f"{processor:.1f}"])
    return markdown.table(["step", "command", "wanted / s", "wall / s", "processor / s"], body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Time what a newcomer waits for.")
    parser.add_argument("folder", type=Path, help="where the clone is, or will be")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all without any")
    arguments = parser.parse_args()
    if unknown := set(arguments.steps) - STEPS.keys():
        parser.error(f"step is {min(unknown)!r}; allowed: {', '.join(STEPS)}")
    if not arguments.folder.exists():
        subprocess.run(["git", "clone", "--quiet", Path(__file__).parents[1], arguments.folder], check=True)
    print(table(arguments.folder, arguments.steps or list(STEPS)), end="")
