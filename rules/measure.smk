"""Measurements: one launch per job, one CSV file per launch.

Needs the plan (common.smk); makes results/<machine>/raw/<experiment>/<job>.csv and its SHA-256. While a job runs, or
after it failed, results/<machine>/kept/<experiment>/<job>.jsonl has the cells that it has measured. Each experiment's
name is a target that measures only that experiment; on_4_gpus measures only the jobs that need four GPUs.
"""


rule measure:
    """Measure the cells of one job, once its code has passed its tests on this machine.

    The tests are part of the job rather than a rule: as inputs of a job, their stamps would make CSV files look outdated
    on a machine without them.
    """
    input:
        obstacles,
    output:
        csv=f"{RESULTS}/raw/{{job}}.csv",
        sha256=f"{RESULTS}/raw/{{job}}.csv.sha256",
    log:
        f"{RESULTS}/logs/{{job}}.log",
    wildcard_constraints:
        job="|".join(map(re.escape, JOBS)),
    # Tables and figures are made at the end, when they can share the cores.
    priority: job_priority
    # All cores: nothing else may run during a measurement.
    threads: workflow.cores
    resources:
        gpu=job_gpus,
        # Not a parameter: changing the limit would make measurements stale.
        cell_timeout=config["cell_timeout"],
        # Without the following, SLURM would spread the GPUs over any number of nodes.
        nodes=1,
        tasks=1,
        tasks_per_gpu=0,
    params:
        command=job_command,
        source=job_source,
        device=PLAN.device,
        seed=config["seed"],
        kept=f"{RESULTS}/kept/{{job}}.jsonl",
        passed=f"{RESULTS}/correctness",
        tests=job_tests,
    message:
        "Measuring {wildcards.job}"
    shell:
        "(rules/correctness.sh {params.passed} {params.tests}"
        " && python -m cs336_systems.run.relaunch --timeout {resources.cell_timeout}"
        " --kept {params.kept} --code {params.source:q} {params.command}"
        " --device {params.device} --seed {params.seed} --output {output.csv}) 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"


for experiment in PLAN.jobs:

    rule:
        name:
            experiment
        input:
            NOT_MEASURED,
            planned_csvs(experiment),


for gpus in sorted({PLAN.gpus_of(job) for job in JOBS.values()} - {0, 1}):

    rule:
        name:
            f"on_{gpus}_gpus"
        input:
            NOT_MEASURED,
            csvs_on(gpus),


rule measurements:
    """Every planned measurement, without the report."""
    input:
        NOT_MEASURED,
        planned_csvs(),
