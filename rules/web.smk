"""The report as one page: the text of the PDF, figures that show their values, and an explorer of all rows.

Needs writeup.typ, the figures, tables and plan, and, on other GPUs than the reference machine's, its recorded CSV files;
makes results/<machine>/report.html, and charts.js, the library that draws its charts. `snakemake writeup` makes neither.
"""

from importlib.metadata import version

PAGE = f"{RESULTS}/report.html"


rule charts:
    """The library that draws the page's charts."""
    output:
        f"{RESULTS}/charts.js",
    log:
        f"{RESULTS}/logs/charts.log",
    # The page is made last.
    priority: -1
    localrule: True
    params:
        version=lambda wildcards: version("vl-convert-python"),
        source=source_digest("scripts.stages.charts"),
    message:
        "Unpacking the library that draws the page's charts"
    script:
        "../scripts/stages/charts.py"


rule web:
    """The report as a page."""
    input:
        **TABLES,
        reference=reference_csvs(),
        parts=[*sorted(map(str, Path("report/web").glob("*"))), "pyproject.toml"],
        figures=FIGURES.values(),
        plan=rules.plan.output[0],
        source=rules.render.output[0],
        charts=rules.charts.output[0],
    output:
        PAGE,
    log:
        f"{RESULTS}/logs/web.log",
    localrule: True
    params:
        experiments=list(TABLES),
        version=lambda wildcards: version("itables"),
        source=source_digest("scripts.stages.web", *EXPERIMENT_MODULES),
    message:
        "Making {output}"
    script:
        "../scripts/stages/web.py"
