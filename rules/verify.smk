"""Verdicts on the user's implementations: right, or wrong and where.

Needs the plan (common.smk); makes results/<machine>/verify.html and verify.csv, by name only, and, for a class, also
results/<machine>/verify/<student>.html. Nothing is measured.
"""


# Without output, so that it runs whenever it is requested, because no digest covers the students' imports.
rule verify:
    """Verify the implementations that the configuration names, or each student's."""
    input:
        refused_if(
            not (STUDENTS or any(value not in ({}, NONE) for value in config["implementations"].values())),
            "implementations names none; allowed: at least one, as in "
            "--config 'implementations={adapters: ../my-assignment2}', or a folder of students",
        )
        or NOT_MEASURED,
    log:
        f"{RESULTS}/logs/verify.log",
    threads: workflow.cores
    resources:
        gpu=min(PLAN.gpus, 4),
    params:
        implementations=config["implementations"],
        students=STUDENTS,
        results=RESULTS,
        strict=config["strict"],
    message:
        "Verifying implementations (up to a minute each)"
    script:
        "../scripts/verify.py"
