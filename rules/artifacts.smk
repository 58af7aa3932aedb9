"""Artifacts: traces of the one step that config.yaml describes under `trace`, for people to open.

Needs the plan (common.smk); makes results/<machine>/traces/training_step.json.gz, and for `snakemake nsys`
results/<machine>/nsys/training_step.nsys-rep.
"""

STEP = f"{PLAN.trace.arguments} --device {PLAN.device} --seed {config['seed']}"

if not PLAN.recorded:

    rule kernel_trace:
        """Trace a step with PyTorch's profiler, for Perfetto (ui.perfetto.dev) or Chrome (chrome://tracing)."""
        input:
            obstacles,
        output:
            report(str(PLAN.traces / "training_step.json.gz"), category="Traces"),
        log:
            f"{RESULTS}/logs/kernel_trace.log",
        threads: workflow.cores
        resources:
            gpu=1 if PLAN.device == "cuda" else 0,
        params:
            step=STEP,
            source=source_digest("cs336_systems.artifacts.kernel_trace", *PLAN.trace.modules),
        message:
            "Tracing a step"
        shell:
            "python -m cs336_systems.artifacts.kernel_trace {params.step} --output {output} 2> {log}"
            " || (tail -n 30 {log} >&2; exit 1)"

    rule nsys:
        """Profile the same step with Nsight Systems, or say that it is not installed."""
        log:
            f"{RESULTS}/logs/nsys.log",
        threads: workflow.cores
        resources:
            gpu=1 if PLAN.device == "cuda" else 0,
        params:
            step=STEP,
            output=f"{RESULTS}/nsys/training_step.nsys-rep",
        shell:
            "python -m cs336_systems.artifacts.nsys {params.step} --output {params.output} 2> {log}"
            " || (tail -n 30 {log} >&2; exit 1)"

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
