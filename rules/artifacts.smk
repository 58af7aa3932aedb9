"""Artifacts: traces of the one step that config.yaml describes under `trace`, for people to open.

Needs the plan (common.smk); makes results/<machine>/traces/training_step.json.gz, for `snakemake nsys`
results/<machine>/nsys/training_step.nsys-rep, and for `snakemake memory_snapshot`
results/<machine>/artifacts/memory_snapshot.pickle.
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
        """Record the memory history of a training step of the profiled model, for PyTorch's viewer."""
        input:
            obstacles,
        output:
            f"{RESULTS}/artifacts/memory_snapshot.pickle",
        log:
            f"{RESULTS}/logs/memory_snapshot.log",
        threads: workflow.cores
        resources:
            gpu=1 if PLAN.device == "cuda" else 0,
        params:
            step="--size 2.7B --context 512 --precision bf16",
            model=config["model"],
            device=PLAN.device,
            seed=config["seed"],
        message:
            "Recording the memory history of a step: {params.step}"
        shell:
            "python -m cs336_systems.artifacts.memory_snapshot {params.step} --model {params.model}"
            " --device {params.device} --seed {params.seed} --output {output} 2> {log}"
            " || (tail -n 30 {log} >&2; exit 1)"
