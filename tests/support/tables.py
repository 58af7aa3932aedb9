"""Small tables of a few rows, and a section's text as plain text."""

import re

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row
from scripts.rendering.answer import answers_of
from scripts.rendering.markup import Typst
from scripts.stages.writeup import environment
from scripts.views.data import frame
from tests.samples import H200, ROOT, provenance

GPU = provenance(**H200)
NANO = {"size": "nano", "rounds": 1, "steps": 4}
"""Parameters of a small cell of training on several ranks."""
EVEN, UNEVEN = [0.0] * 4, [-5.0, 5.0] * 2
"""Times of four steps beyond their middle, ms."""


def table(experiment, origin, cells):
    """A table of cells and their metrics: in the metric's unit, one sample or a list."""
    return comparison(experiment, origin, {cell: [({}, metrics)] for cell, metrics in cells.items()})


def comparison(experiment, origin, cells):
    """A table of cells with several contenders: for each its distinguishing details, and its metrics."""
    rows = []
    for cell, contenders in cells.items():
        for details, metrics in contenders:
            for metric, samples in metrics.items():
                kept = samples if isinstance(samples, list) else [samples]
                measurement = summarize(metric, type(cell).metrics[metric], kept, details=details)
                rows.append(make_row(cell, measurement, origin))
    return frame(experiment, rows)


def took(step, apart=EVEN, **others):
    """A contender's metrics: steps of about that many ms."""
    return {"step": [step + more for more in apart]} | others


def training(kind, details, cells, origin=GPU, **setting):
    """A table of training with 2, 4, ... processes: in each cell contenders, named by their details, and metrics."""
    return comparison(
        kind.name,
        origin,
        {
            kind(**NANO | {"processes": 2 * place} | setting): [
                (dict(zip(details, name.split(), strict=False)), metrics) for name, metrics in cell.items()
            ]
            for place, cell in enumerate(cells, start=1)
        },
    )


def prose(section, answers, origin):
    """A section as plain text."""

    def figure(name):
        return Typst(f"<fig-{name}>")

    parts = {key: part.markup(f"{section}-{key}", figure) for key, part in answers_of(answers).items()}
    summary = {"machine": "M", "gpu": origin.gpu, "peak": gpu_of(origin.gpu), "traced": "T"}
    template = environment(ROOT / "report").get_template(f"sections/{section}.typ.j2")
    return plain(template.render(a=answers | parts, summary=summary, figure=figure))


def plain(text):
    """Markup without Typst's escapes, and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r'#"(.*?)";', r"\1", text))
