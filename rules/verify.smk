"""Verdicts on implementations of one's own: right, or wrong and where.

Needs the plan (common.smk); makes results/<machine>/verify.html and verify.csv, by name only, and, for a class, also
results/<machine>/verify/<student>.html. Nothing is measured.
"""

from cs336_systems.plan import NONE

CLASS = config["students"]
# What each student has to name.
STUDENTS = [] if CLASS == NONE else [str(file) for file in sorted(Path(CLASS).glob("*/implementations.yaml"))]
if CLASS != NONE and not STUDENTS:
    raise WorkflowError(
        f"{set_by(SOURCES, ['students'])}: students is '{CLASS}'; "
        "allowed: none, or a folder with one for each student, which has an implementations.yaml"
    )


def something_to_verify(wildcards):
    """Input of what verifies: none, or, where there is nothing to verify, one that cannot exist, named by the reason."""
    if not (STUDENTS or any(config["implementations"].values())):
        return ["(implementations names none; allowed: at least one, or a folder of students, see README.md)"]
    return measures_here(wildcards)


# Without output, so that it runs whenever it is asked for: no digest follows what students import.
rule verify:
    """Run the numeric tests on the implementations that the configuration names, or on those of each student."""
    input:
        something_to_verify,
    log:
        f"{RESULTS}/logs/verify.log",
    threads: workflow.cores
    resources:
        gpu=min(PLAN.gpus, 4),
    params:
        implementations=config["implementations"],
        students=STUDENTS,
        results=RESULTS,
        limit_s=config["cell_timeout"],
        strict=config["strict"],
    message:
        "Testing implementations"
    script:
        "../scripts/verify.py"
