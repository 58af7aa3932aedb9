"""Two runs compared cell by cell: these results with others, which `with` names.

Needs the CSV files of both; makes results/<machine>/comparison/<name>/ with comparison.pdf, .html, .svg, .json and .csv, by
name only. Nothing is measured.
"""

from pathlib import Path

COMPARISON = f"{RESULTS}/comparison/{Path(COMPARED_WITH).resolve().name}"


# Without output, so that it runs whenever it is requested.
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
    message:
        "Comparing with {params.a}: {params.folder}/comparison.pdf"
    shell:
        "(python -m cs336_systems.compare {params.a:q} {params.b:q}"
        " --json {params.folder:q}/comparison.json --csv {params.folder:q}/comparison.csv"
        " && python -m scripts.stages.comparison_page {params.folder:q}/comparison.json {params.folder:q}) 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
