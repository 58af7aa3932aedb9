"""Figures: one rule per figure in report/contents.yaml, named after it.

Needs results/<machine>/tables and traces, or nothing where closed forms are drawn; makes results/<machine>/figures/*.svg.
"""

from scripts.rendering.contents import read_contents

try:
    CONTENTS = read_contents()
except ValueError as error:
    raise WorkflowError(str(error))

FIGURES = {name: f"{RESULTS}/figures/{name}.svg" for name in CONTENTS.figures}

for name, figure in CONTENTS.figures.items():

    rule:
        name:
            name
        input:
            **figure.sources(TABLES, trace_to_draw),
        output:
            report(
                FIGURES[name],
                category=figure.category,
                labels={"figure": name},
                caption="../report/captions/figure.rst",
            ),
        log:
            f"{RESULTS}/logs/figures/{name}.log",
        localrule: True
        params:
            script=figure.script,
            options=figure.options,
            caption=figure.caption,
            source=source_digest(*figure.modules),
        script:
            "../scripts/draw.py"
