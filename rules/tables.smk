"""Tables: the CSV files of each experiment merged and validated, the plan, its coverage, and the self-checks.

Needs raw/; makes results/<machine>/tables/*.csv, plan.json, coverage.csv, checks.csv and verdict.txt.
"""

import hashlib

from cs336_systems.discovery import modules

TABLES = {experiment: f"{RESULTS}/tables/{experiment}.csv" for experiment in PLAN.jobs}
# Modules are discovered by name, so no import statement leads a script's digest to them.
EXPERIMENT_MODULES = modules("cs336_systems.experiments")
# Passed to the next rule through the environment: as a parameter, it would be in the record of each run.
PLAN_FILE = workflow.snakemake_tmp_dir / "plan.json"
os.environ.update(CS336_PLAN=str(PLAN_FILE))


rule plan:
    """The plan of this run as a file."""
    output:
        f"{RESULTS}/plan.json",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    params:
        digest=hashlib.sha256(PLAN_JSON.encode()).hexdigest(),
    message:
        "Writing the plan"
    shell:
        'cp "$CS336_PLAN" {output} 2> {log}'


rule tables:
    """One validated table per experiment, and a comparison of planned and measured cells."""
    input:
        plan=rules.plan.output[0],
        csvs=raw_csvs,
    output:
        [
            report(path, category="Tables", labels={"experiment": experiment}, caption="../report/captions/table.rst")
            for experiment, path in TABLES.items()
        ],
        coverage=f"{RESULTS}/coverage.csv",
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    threads: workflow.cores
    params:
        source=source_digest("scripts.stages.tables", *EXPERIMENT_MODULES),
    message:
        "Merging the measurements, and comparing them with the plan"
    script:
        "../scripts/stages/tables.py"


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
        source=source_digest("scripts.stages.self_checks", *scripts_of("checks"), *EXPERIMENT_MODULES),
    message:
        "Checking the measurements against each other and against closed forms"
    script:
        "../scripts/stages/self_checks.py"


rule verdict:
    """Print the report's path and the result of its self-checks; with `strict: true`, a failed check fails the run."""
    input:
        checks=rules.checks.output[0],
        # So that a failed run keeps the report with the reason.
        report=f"{RESULTS}/writeup.pdf",
    output:
        f"{RESULTS}/verdict.txt",
    log:
        f"{RESULTS}/logs/verdict.log",
    localrule: True
    params:
        source=source_digest("scripts.stages.verdict"),
        strict="--strict" if config["strict"] else "",
    message:
        "Counting the self-checks that passed"
    shell:
        "python -m scripts.stages.verdict {input.checks} {input.report} {output} {params.strict} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
