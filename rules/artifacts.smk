"""Artifacts: files of one step each, to open in other tools.

Needs the plan (common.smk); makes results/<machine>/traces/*.json.gz of the steps that config.yaml describes under
`trace`. By name only, `snakemake nsys` profiles the first one into results/<machine>/nsys/training_step.nsys-rep, and
`snakemake memory_snapshot` makes results/<machine>/artifacts/memory_snapshot.pickle.
"""

PLACE = f"--device {PLAN.device} --seed {config['seed']}"
STEP = f"{PLAN.traced['training_step'].arguments} {PLACE}"
# The handout's size; run the command by hand for others.
SNAPSHOT_STEP = f"--size 2.7B --context 512 --precision bf16 --model {config['model']} {PLACE}"


rule kernel_trace:
    """Trace steps with PyTorch's profiler, for Perfetto (ui.perfetto.dev) or Chrome (chrome://tracing)."""
    input:
        obstacles,
    output:
        report([f"{RESULTS}/traces/{name}.json.gz" for name in TRACES], category="Traces"),
    log:
        f"{RESULTS}/logs/kernel_trace.log",
    threads: workflow.cores
    resources:
        gpu=1 if PLAN.device == "cuda" else 0,
        cell_timeout=config["cell_timeout"],
    params:
        steps=trace_commands,
        source=trace_source,
    message:
        "Tracing steps"
    shell:
        "( {params.steps} ) 2> {log} || python -m cs336_systems.run.failure $? {log}"


rule nsys:
    """Profile the same step with Nsight Systems, if it is installed."""
    input:
        obstacles,
    log:
        f"{RESULTS}/logs/nsys.log",
    threads: workflow.cores
    resources:
        gpu=1 if PLAN.device == "cuda" else 0,
        cell_timeout=config["cell_timeout"],
    params:
        step=STEP,
        output=f"{RESULTS}/nsys/training_step.nsys-rep",
    message:
        "Profiling a step with Nsight Systems"
    shell:
        "python -m cs336_systems.run.relaunch --timeout {resources.cell_timeout}"
        " python -m cs336_systems.artifacts.nsys {params.step} --output {params.output} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"


rule memory_snapshot:
    """Record a step's memory history for PyTorch's viewer; needs a GPU."""
    input:
        obstacles,
    log:
        f"{RESULTS}/logs/memory_snapshot.log",
    threads: workflow.cores
    resources:
        gpu=1 if PLAN.device == "cuda" else 0,
        cell_timeout=config["cell_timeout"],
    params:
        step=SNAPSHOT_STEP,
        output=f"{RESULTS}/artifacts/memory_snapshot.pickle",
    message:
        "Recording the memory history of a step"
    shell:
        "python -m cs336_systems.run.relaunch --timeout {resources.cell_timeout}"
        " python -m cs336_systems.artifacts.memory_snapshot {params.step} --output {params.output} 2> {log}"
        " || python -m cs336_systems.run.failure $? {log}"
