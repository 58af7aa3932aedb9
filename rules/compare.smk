"""Compare two runs cell by cell: these results and those that `with` names.

Needs the CSV files of both; makes results/<machine>/comparison/<name>/ with comparison.pdf, .html, .svg, .json and .csv, by
name only. Nothing is measured.
"""

from pathlib import Path

COMPARISON = f"{RESULTS}/comparison/{Path(COMPARED_WITH).resolve().name}"


# Without output, so that it runs whenever it is requested, and its files are kept when a time is slower.
rule compare:
    """Compare these results with others: a verdict on each time, a page and a figure."""
    input:
        not_compared,
    log:
        f"{RESULTS}/logs/compare.log",
    localrule: True
    params:
        a=COMPARED_WITH,
        b=str(PLAN.raw),
        folder=COMPARISON,
        price=f"--price={config['price']}" if config["price"] != NONE else "",
        fail=f"--fail-if-slower={config['fail_if_slower']}" if config["fail_if_slower"] != NONE else "",
    message:
        "Comparing with {params.a}: {params.folder}/comparison.pdf"
    shell:
        "rules/compare.sh {params.a:q} {params.b:q} {params.folder:q} {params.price:q} {params.fail:q} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
