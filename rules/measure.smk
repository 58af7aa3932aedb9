"""Measurements: one job a process, one process a CSV file.

Needs the plan (common.smk); makes results/<machine>/raw/<experiment>/<job>.csv, after the correctness tests have
passed on this machine. A target named after each experiment measures that experiment alone.
"""

if MEASURES:

    rule correctness:
        """Nothing is measured with wrong code: its numeric tests run on this machine's devices first.

        The stamp is named after the code it speaks for, so it is missing, not outdated, when the code changes:
        Snakemake leaves out outdated measurements that depend on an outdated stamp through ancient().
        """
        output:
            f"{RESULTS}/correctness/{{experiment}}-{{digest}}.txt",
        params:
            tests=numeric_tests,
        threads: workflow.cores
        message:
            "Checking the code of {wildcards.experiment} on this machine before anything is measured"
        shell:
            "{PYTHON} -m pytest -q -m numeric -p no:cacheprovider {params.tests} > {output}.log 2>&1"
            " && mv {output}.log {output} || (cat {output}.log; exit 1)"

    rule measure:
        """Run an experiment's module over the cells of one job."""
        input:
            gate=ancient(correctness_stamp),
        output:
            f"{RESULTS}/raw/{{experiment}}/{{job}}.csv",
        log:
            f"{RESULTS}/logs/{{experiment}}/{{job}}.log",
        params:
            arguments=job_arguments,
            source=job_source,
            device=PLAN.device,
            seed=config["seed"],
        # All cores: nothing else may run beside a measurement.
        threads: workflow.cores
        resources:
            gpu=int(PLAN.device == "cuda"),
        message:
            "Measuring {wildcards.experiment}: {wildcards.job}"
        shell:
            "{PYTHON} -m cs336_systems.benchmarks.{wildcards.experiment} {params.arguments}"
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
