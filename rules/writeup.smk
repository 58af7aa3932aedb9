"""The report: answers from the tables, templates filled with them and typeset.

Needs the plan, tables, figures, coverage, self-checks and the verdict on them, and, on a GPU other than that of the
reference, the recorded CSV files of that; makes results/<machine>/answers.pickle, writeup.typ and writeup.pdf. The target `writeup` is both: the report is there, and its verdict is not a failure.
"""

TEMPLATES = [str(path) for path in sorted(Path("report").rglob("*.typ*"))]


rule writeup:
    """The report, and with `strict: true` nothing in it that failed."""
    input:
        f"{RESULTS}/writeup.pdf",
        f"{RESULTS}/verdict.txt",


rule answers:
    """What the templates print, from the tables."""
    input:
        reference_csvs(),
        "report/contents.yaml",
        **TABLES,
        plan=rules.plan.output[0],
        coverage=rules.tables.output.coverage,
        checks=rules.checks.output[0],
    output:
        f"{RESULTS}/answers.pickle",
    log:
        f"{RESULTS}/logs/answers.log",
    localrule: True
    params:
        digests={name: recorded_digests(jobs.values()) for name, jobs in PLAN.jobs.items()},
        source=source_digest("scripts.compute_answers", *scripts_of("answers"), *EXPERIMENT_MODULES),
    message:
        "Computing the answers"
    script:
        "../scripts/compute_answers.py"


rule typeset:
    """The report as a PDF."""
    input:
        FIGURES.values(),
        TEMPLATES,
        "report/contents.yaml",
        "report/references.bib",
        plan=rules.plan.output[0],
        answers=rules.answers.output[0],
    output:
        pdf=f"{RESULTS}/writeup.pdf",
        source=f"{RESULTS}/writeup.typ",
    log:
        f"{RESULTS}/logs/writeup.log",
    localrule: True
    params:
        source=source_digest("scripts.writeup"),
    message:
        "Typesetting {output.pdf}"
    script:
        "../scripts/writeup.py"
