"""Files for other tools to show, made on request only: `snakemake memory_snapshot`.

Needs this machine's device; makes results/<machine>/artifacts/*.
"""


rule memory_snapshot:
    """The memory history of a training step, for https://pytorch.org/memory_viz."""
    output:
        f"{RESULTS}/artifacts/memory_snapshot.pickle",
    log:
        f"{RESULTS}/logs/artifacts/memory_snapshot.log",
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        size="2.7B",
        context=512,
        precision="bf16",
        model=config["model"],
    message:
        "Recording the memory of a training step of {params.size}, context {params.context}, {params.precision}"
    shell:
        "python -m cs336_systems.artifacts.memory_snapshot --size {params.size} --context {params.context}"
        " --precision {params.precision} --model {params.model} --output {output} 2> {log}"
        " || (tail -n 30 {log} >&2; exit 1)"
