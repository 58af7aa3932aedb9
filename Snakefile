"""`snakemake` measures this machine and makes results/<machine>/writeup.pdf and report.html.

`snakemake writeup` rebuilds the PDF from the existing CSV files, and `snakemake web` the page; `snakemake measurements`
only measures; `snakemake end_to_end` (or another experiment's name) measures only that experiment; `snakemake on_4_gpus`
measures only the jobs that need four GPUs; `snakemake submission` packs the code and the report to hand in; `snakemake
card` checks whether this machine's GPUs are as fast as they should be; `snakemake bundle` packs the results for others
to check.
"""

from snakemake.utils import min_version

min_version("9.20")


include: "rules/preconditions.smk"


configfile: "config.yaml"


include: "rules/common.smk"
include: "rules/measure.smk"
include: "rules/artifacts.smk"
include: "rules/tables.smk"
include: "rules/figures.smk"
include: "rules/writeup.smk"
include: "rules/web.smk"
include: "rules/submission.smk"
include: "rules/verify.smk"
include: "rules/compare.smk"
include: "rules/card.smk"
include: "rules/bundle.smk"


rule all:
    """The report, and every measurement it is made from."""
    default_target: True
    input:
        planned_csvs(),
        f"{RESULTS}/writeup.pdf",
        f"{RESULTS}/report.html",
        f"{RESULTS}/verdict.txt",
    message:
        "All measurements and the report are complete"
