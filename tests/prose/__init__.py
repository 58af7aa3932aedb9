"""Small tables whose right answers were worked out by hand, and the sentences that must come of them.

A module for each part of the report; here, what makes a table of a few rows and a section's text.
"""

import re

from cs336_systems.measure.measurement import summarize
from cs336_systems.measure.record import make_row
from scripts.data import frame
from scripts.markup import Typst
from scripts.writeup import environment
from tests.samples import H200, ROOT, provenance

GPU, CPU = provenance(**H200), provenance()


def table(experiment, origin, cells):
    """A table of cells and their metrics: in the metric's unit, one sample or a list."""
    rows = []
    for cell, metrics in cells.items():
        for metric, samples in metrics.items():
            found = summarize(metric, type(cell).metrics[metric], samples if isinstance(samples, list) else [samples])
            rows.append(make_row(cell, found, origin))
    return frame(experiment, rows)


def prose(section, answers, origin):
    """A section as plain text."""
    text = (
        environment(ROOT / "report")
        .get_template(f"sections/{section}.typ.j2")
        .render(
            a=answers,
            summary={"machine": "M", "gpu": origin.gpu, "peak": None, "traced": "T"},
            figure=lambda name: Typst(""),
            reproduce=lambda *arguments: Typst(""),
        )
    )
    return plain(text)


def plain(text):
    """Markup without Typst's escapes, and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r'#"(.*?)";', r"\1", text))


def step(forward, backward, optimizer, **others):
    """The metrics of a training step whose ten steps took equally long, ms."""
    phases = {"forward": forward, "backward": backward, "optimizer": optimizer}
    whole = {"step": sum(phases.values()), **phases}
    return {name: [value] * 10 for name, value in whole.items()} | others


def end_to_end(origin, cells):
    """Tables of the sections on training steps."""
    empty = {name: frame(name, []) for name in ("attention", "autocast_dtypes")}
    return {"end_to_end": table("end_to_end", origin, cells), **empty}
