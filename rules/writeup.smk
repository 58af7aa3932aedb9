"""The report: templates filled with the tables' numbers and typeset.

Needs the plan, tables, figures, coverage, self-checks and the verdict on them, and, on a GPU other than that of the
reference, the recorded CSV files of that; makes results/<machine>/writeup.typ and
writeup.pdf. The target `writeup` is both: the report is there, and its verdict is not a failure.
"""

TEMPLATES = [str(path) for path in sorted(Path("report").rglob("*.typ*"))]


rule writeup:
    """The report, and with `strict: true` nothing in it that failed."""
    input:
        f"{RESULTS}/writeup.pdf",
        f"{RESULTS}/verdict.txt",


rule typeset:
    """The report as a PDF."""
    input:
        FIGURES.values(),
        TEMPLATES,
        "report/contents.yaml",
        "report/references.bib",
        reference_csvs(),
        **TABLES,
        plan=rules.plan.output[0],
        coverage=rules.coverage.output[0],
        checks=rules.checks.output[0],
    output:
        pdf=f"{RESULTS}/writeup.pdf",
        source=f"{RESULTS}/writeup.typ",
    log:
        f"{RESULTS}/logs/writeup.log",
    localrule: True
    params:
        digests={name: recorded_digests(jobs.values()) for name, jobs in PLAN.jobs.items()},
        source=source_digest("scripts.writeup", *modules("scripts.answers"), *EXPERIMENT_MODULES),
    message:
        "Typesetting {output.pdf}"
    script:
        "../scripts/writeup.py"
