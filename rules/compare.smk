"""Two runs compared cell by cell: these results with others, which `with` names.

Needs the CSV files of both; makes results/<machine>/comparison/<name>/ with comparison.pdf, .html, .svg, .json and .csv, by
name only. Nothing is measured.
"""

from pathlib import Path

from cs336_systems.compare.results import find

COMPARED_WITH = str(config["with"])
COMPARISON = f"{RESULTS}/comparison/{Path(COMPARED_WITH).resolve().name}"


def not_compared(wildcards):
    """Input that keeps the comparison from running: none, or the reason."""
    if COMPARED_WITH == NONE:
        return refused_if(True, "with is 'none'; allowed: a label in results/ or recorded/, or a folder")
    try:
        find(COMPARED_WITH)
    except ValueError as error:
        return refused_if(True, error)
    return []


# Without output, so that it runs whenever it is requested, and its files are kept when a time is slower.
rule compare:
    """Compare these results with others: verdicts on all times together, a page and a figure."""
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
