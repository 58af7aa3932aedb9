"""What the course wants handed in.

Needs the report of this configuration; makes submission/code.zip and submission/writeup.pdf, by name only.
"""


rule submission:
    """Pack the code and the report, and run the code's tests where only code.zip has been unpacked."""
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
        "Packing {params.folder}, and testing what is in it"
    shell:
        "python -m scripts.stages.submission {input.report} {params.folder} {params.adapters:q} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
