"""The report: answers from the tables, templates filled with them and typeset.

Needs the plan, tables, figures, coverage, self-checks and the verdict on them; makes results/<machine>/writeup.typ and
writeup.pdf. The target `writeup` needs both the report and its verdict.
"""

from scripts.rendering.notes import note_files

TEMPLATES = sorted(map(str, Path("report").rglob("*.typ.j2")))
try:
    NOTES = note_files(CONTENTS.sections)
except ValueError as error:
    raise Refused(str(error))
THEMES = sorted(map(str, Path("report").rglob("*.typ")))


rule writeup:
    """The report; with `strict: true`, a failed self-check is an error."""
    input:
        f"{RESULTS}/writeup.pdf",
        f"{RESULTS}/verdict.txt",
    message:
        "The report is complete"


rule render:
    """The report as Typst source: the templates filled with answers from the tables."""
    input:
        TEMPLATES,
        NOTES,
        traces_to_draw,
        nothing_to_report,
        "report/contents.yaml",
        "cs336_systems/revisions.yaml",
        **TABLES,
        plan=rules.plan.output[0],
        coverage=rules.tables.output.coverage,
        checks=rules.checks.output[0],
    output:
        f"{RESULTS}/writeup.typ",
    log:
        f"{RESULTS}/logs/render.log",
    # Before other waiting jobs, because the PDF and the page are made from it.
    priority: 1
    localrule: True
    params:
        experiments=list(TABLES),
        source=source_digest("scripts.stages.writeup", *scripts_of("answers"), *EXPERIMENT_MODULES),
    message:
        "Computing the answers, and filling the templates"
    script:
        "../scripts/stages/writeup.py"


rule typeset:
    """The report as a PDF."""
    input:
        FIGURES.values(),
        THEMES,
        "report/references.bib",
        source=rules.render.output[0],
    output:
        f"{RESULTS}/writeup.pdf",
    log:
        f"{RESULTS}/logs/writeup.log",
    priority: 1
    localrule: True
    params:
        source=source_digest("scripts.stages.typeset"),
    message:
        "Typesetting {output}"
    script:
        "../scripts/stages/typeset.py"
