"""Tables: the CSV files of an experiment merged and validated, what was covered, and the self-checks.

Needs results/<machine>/raw; makes results/<machine>/tables/*.csv, coverage.csv, checks.csv and verdict.txt.
"""

TABLES = {experiment: f"{RESULTS}/tables/{experiment}.csv" for experiment in PLAN.jobs}


rule table:
    """One validated table an experiment."""
    input:
        raw_csvs,
    output:
        report(
            f"{RESULTS}/tables/{{experiment}}.csv",
            category="Tables",
            labels={"experiment": "{experiment}"},
            caption="../report/captions/table.rst",
        ),
    log:
        f"{RESULTS}/logs/tables/{{experiment}}.log",
    params:
        source=source_digest("scripts.tables"),
    message:
        "Merging the measurements of {wildcards.experiment}"
    script:
        "../scripts/tables.py"


rule coverage:
    """Planned cells against measured ones."""
    input:
        **TABLES,
    output:
        f"{RESULTS}/coverage.csv",
    log:
        f"{RESULTS}/logs/coverage.log",
    params:
        source=source_digest("scripts.coverage"),
        plan=plan_digest(),
    message:
        "Comparing what was planned with what was measured"
    script:
        "../scripts/coverage.py"


rule checks:
    """Self-checks of the measurements."""
    input:
        **TABLES,
    output:
        report(f"{RESULTS}/checks.csv", category="Self-checks", caption="../report/captions/checks.rst"),
    log:
        f"{RESULTS}/logs/checks.log",
    params:
        source=source_digest("scripts.self_checks"),
    message:
        "Checking the measurements against each other and against closed forms"
    script:
        "../scripts/self_checks.py"


rule verdict:
    """The self-checks' outcome in a line; with `strict: true` a failed check fails the run."""
    input:
        rules.checks.output,
    output:
        f"{RESULTS}/verdict.txt",
    log:
        f"{RESULTS}/logs/verdict.log",
    params:
        source=source_digest("scripts.verdict"),
        strict=config["strict"],
    script:
        "../scripts/verdict.py"
