"""The card: the rates and state of each GPU of this machine, and whether they are as expected.

Needs the plan (common.smk); makes results/<machine>/card.pdf and card.html and raw/card/TIME-JOB.csv, by name only.
"""

CARD = card_jobs()


# Without output, so that it measures whenever it is requested: a card shows a machine's current state.
rule card:
    """Check this machine's GPUs, and make the pages of the card."""
    input:
        card_obstacles,
    log:
        f"{RESULTS}/logs/card.log",
    threads: workflow.cores
    resources:
        gpu=PLAN.gpus,
    params:
        command=card_command(CARD),
        csvs=list(CARD),
        folder=RESULTS,
        passed=f"{RESULTS}/correctness",
    message:
        "Measuring the card"
    shell:
        "(rules/correctness.sh {params.passed} && {params.command}"
        " && python -m scripts.card {params.csvs} {params.folder}) 2>&1 | tee {log} >&2"
        " || python -m cs336_systems.run.failure $? {log}"
