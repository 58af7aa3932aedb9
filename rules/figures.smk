"""Figures: one job that draws all changed figures.

Needs results/<machine>/tables and traces, or nothing if a figure shows closed forms; makes
results/<machine>/figures/*.svg.
"""

from scripts.rendering.contents import read_contents

try:
    CONTENTS = read_contents()
except ValueError as error:
    raise Refused(str(error))

FIGURES = {name: f"{RESULTS}/figures/{name}.svg" for name in CONTENTS.figures}


rule figures:
    """Every figure in report/contents.yaml."""
    input:
        TABLES.values(),
        traces_to_draw if any(figure.trace for figure in CONTENTS.figures.values()) else [],
    output:
        # Kept while the job runs, because unchanged figures are not drawn again.
        [
            update(
                report(
                    FIGURES[name],
                    category=figure.category,
                    labels={"figure": name, "shows": figure.caption},
                    caption="../report/captions/figure.rst",
                )
            )
            for name, figure in CONTENTS.figures.items()
        ],
    log:
        f"{RESULTS}/logs/figures.log",
    localrule: True
    # One core is left for self-checks and answers.
    threads: max(1, workflow.cores - 1)
    params:
        figures=figures_to_draw,
    message:
        "Drawing the figures"
    script:
        "../scripts/stages/draw.py"
