"""The files to hand in for the course.

Needs the report of this configuration; makes submission/code.zip and submission/writeup.pdf, by name only.
"""


rule submission:
    """Pack the code and the report, and run the tests in a folder with only the unpacked code.zip."""
    input:
        rules.writeup.input,
        report=rules.typeset.output[0],
    log:
        f"{RESULTS}/logs/submission.log",
    # The tests use all cores.
    threads: workflow.cores
    params:
        folder="submission",
        adapters=config["implementations"]["adapters"],
    message:
        "Packing {params.folder}, and testing its contents"
    shell:
        "python -m scripts.stages.submission {input.report} {params.folder} {params.adapters:q} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
