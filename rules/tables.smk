"""Tables: the CSV files of an experiment merged and validated, the plan, its coverage, and the self-checks.

Needs raw/; makes results/<machine>/tables/*.csv, unplanned/*.csv, plan.json, coverage.csv, checks.csv and verdict.txt.
"""

from cs336_systems.discovery import modules

TABLES = {experiment: f"{RESULTS}/tables/{experiment}.csv" for experiment in PLAN.jobs}
# Cells that were measured and that no plan asks for, by experiment.
UNPLANNED = [f"{RESULTS}/unplanned/{experiment}.csv" for experiment in PLAN.jobs]
# Found by name, so no script has an import statement for them that its digest could follow.
EXPERIMENT_MODULES = modules("cs336_systems.experiments")


rule plan:
    """The plan of this run as a file."""
    output:
        f"{RESULTS}/plan.json",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    params:
        plan=PLAN_JSON,
        source=source_digest("scripts.plan"),
    script:
        "../scripts/plan.py"


rule table:
    """One validated table per experiment, and one of what was measured but is not planned."""
    input:
        raw_csvs,
    output:
        table=report(
            f"{RESULTS}/tables/{{experiment}}.csv",
            category="Tables",
            labels={"experiment": "{experiment}"},
            caption="../report/captions/table.rst",
        ),
        unplanned=f"{RESULTS}/unplanned/{{experiment}}.csv",
    log:
        f"{RESULTS}/logs/tables/{{experiment}}.log",
    # Before any figure, so that the self-checks, which take longest, start early.
    priority: 1
    localrule: True
    params:
        machine=PLAN.machine,
        planned=planned_cells,
        source=lambda wildcards: source_digest("scripts.tables", f"cs336_systems.experiments.{wildcards.experiment}"),
    message:
        "Merging the measurements of {wildcards.experiment}"
    script:
        "../scripts/tables.py"


rule coverage:
    """Planned cells against measured ones."""
    input:
        **TABLES,
        unplanned=UNPLANNED,
        plan=rules.plan.output[0],
    output:
        f"{RESULTS}/coverage.csv",
    log:
        f"{RESULTS}/logs/coverage.log",
    localrule: True
    params:
        experiments=list(PLAN.jobs),
        source=source_digest("scripts.coverage", *EXPERIMENT_MODULES),
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
    priority: 1
    localrule: True
    params:
        source=source_digest("scripts.self_checks", *modules("scripts.checks"), *EXPERIMENT_MODULES),
    message:
        "Checking the measurements against each other and against closed forms"
    script:
        "../scripts/self_checks.py"


rule verdict:
    """Where the report is and how its self-checks went; with `strict: true` a failed check fails the run."""
    input:
        checks=rules.checks.output[0],
        # A failed run leaves the report that says why.
        report=f"{RESULTS}/writeup.pdf",
        source=f"{RESULTS}/writeup.typ",
    output:
        f"{RESULTS}/verdict.txt",
    log:
        f"{RESULTS}/logs/verdict.log",
    localrule: True
    params:
        source=source_digest("scripts.verdict"),
        strict=config["strict"],
    script:
        "../scripts/verdict.py"
