"""Results as one file that others can check.

Needs the tables' rules and existing CSV files; makes results/<machine>/<machine>.crate.zip, by name only.
`snakemake check --config bundle=FILE` checks such a file, and `snakemake promote --config bundle=FILE` adds it to the
recorded results.
"""


rule bundle:
    """Pack the existing CSV files, the plan, versions and verdicts as one file. Nothing is measured."""
    input:
        csvs=raw_csvs,
        cards=cards_to_pack,
        traces=traces_to_draw,
        plan=rules.plan.output[0],
        coverage=rules.tables.output.coverage,
        checks=rules.checks.output[0],
    output:
        f"{RESULTS}/{PLAN.machine}.crate.zip",
    log:
        f"{RESULTS}/logs/bundle.log",
    localrule: True
    params:
        source=source_digest("scripts.bundle.make"),
    message:
        "Packing {output}"
    script:
        "../scripts/bundle/make.py"


NO_BUNDLE = refused_if(
    not os.path.exists(config["bundle"]), f"bundle is '{config['bundle']}'; allowed: the path of a bundle"
)
NOT_WHOLE = refused_if(PLAN.scale == QUICK, "scale is 'quick', which measures parts of jobs; allowed: smoke or handout")


rule check:
    """Check a bundle: what passed, what failed, and what cannot be decided."""
    input:
        NO_BUNDLE,
    log:
        f"{RESULTS}/logs/check.log",
    localrule: True
    params:
        bundle=config["bundle"],
    message:
        "Checking {params.bundle} (up to a minute)"
    shell:
        "python -m scripts.bundle.check {params.bundle:q} 2> {log} || python -m cs336_systems.run.failure $? {log}"


rule promote:
    """Add this machine's measurements, or a bundle, to the recorded results; they replace earlier ones of the same jobs."""
    input:
        NO_BUNDLE if config["bundle"] != NONE else [NOT_MEASURED, NOT_WHOLE],
    log:
        f"{RESULTS}/logs/promote.log",
    localrule: True
    params:
        results=config["bundle"] if config["bundle"] != NONE else str(PLAN.raw.parent),
    message:
        "Adding {params.results} to recorded/, if nothing failed"
    shell:
        "python -m scripts.bundle.promote {params.results:q} recorded 2> {log} || python -m cs336_systems.run.failure $? {log}"
