"""Measurements: one job a process, one process a CSV file.

Needs the plan (common.smk); makes results/<machine>/raw/<experiment>/<job>.csv. A target named after each experiment measures that experiment alone.
"""

if MEASURES:

    rule measure:
        """Run an experiment's module over the cells of one job, once its code has passed its tests on this machine.

        The tests are part of the job rather than a rule: a stamp among a job's inputs would make recorded CSV files
        look outdated on a machine where the stamp is not there yet.
        """
        output:
            f"{RESULTS}/raw/{{experiment}}/{{job}}.csv",
        log:
            f"{RESULTS}/logs/{{experiment}}/{{job}}.log",
        # All cores: nothing else may run beside a measurement.
        threads: workflow.cores
        resources:
            gpu=int(PLAN.device == "cuda"),
        params:
            arguments=job_arguments,
            source=job_source,
            device=PLAN.device,
            seed=config["seed"],
            passed=f"{RESULTS}/correctness",
            tests=numeric_tests,
        message:
            "Measuring {wildcards.experiment}: {wildcards.job}"
        shell:
            "rules/correctness.sh {params.passed} {params.tests}"
            " && python -m cs336_systems.benchmarks.{wildcards.experiment} {params.arguments}"
            " --device {params.device} --seed {params.seed} --output {output} 2> {log}"
            " || (tail -n 30 {log} >&2; exit 1)"

    for experiment in PLAN.jobs:

        rule:
            name:
                experiment
            input:
                planned_csvs(experiment),

    rule measurements:
        """Every planned measurement, without the report."""
        input:
            planned_csvs(),
