"""Figures: one module of scripts/figures a figure, drawn from one experiment's table.

Needs results/<machine>/tables; makes results/<machine>/figures/*.svg.
"""


rule step_phases:
    """Where a training step's time goes."""
    input:
        table=TABLES["end_to_end"],
    output:
        figure("step_phases", "Benchmarking"),
    log:
        f"{RESULTS}/logs/figures/step_phases.log",
    params:
        source=source_digest("scripts.figures.step_phases"),
    script:
        "../scripts/figures/step_phases.py"


rule step_context:
    """Step time against context length."""
    input:
        table=TABLES["end_to_end"],
    output:
        figure("step_context", "Benchmarking"),
    log:
        f"{RESULTS}/logs/figures/step_context.log",
    params:
        source=source_digest("scripts.figures.step_context"),
    script:
        "../scripts/figures/step_context.py"


rule warmup:
    """What the first step costs after few warm-up steps."""
    input:
        table=TABLES["end_to_end"],
    output:
        figure("warmup", "Benchmarking"),
    log:
        f"{RESULTS}/logs/figures/warmup.log",
    params:
        source=source_digest("scripts.figures.warmup"),
    script:
        "../scripts/figures/warmup.py"


rule precision_speedup:
    """bf16 autocast against fp32."""
    input:
        table=TABLES["end_to_end"],
    output:
        figure("precision_speedup", "Mixed precision"),
    log:
        f"{RESULTS}/logs/figures/precision_speedup.log",
    params:
        comparison="precision",
        source=source_digest("scripts.figures.speedup"),
    script:
        "../scripts/figures/speedup.py"


rule compile_speedup:
    """torch.compile against eager."""
    input:
        table=TABLES["end_to_end"],
    output:
        figure("compile_speedup", "torch.compile"),
    log:
        f"{RESULTS}/logs/figures/compile_speedup.log",
    params:
        comparison="compile",
        source=source_digest("scripts.figures.speedup"),
    script:
        "../scripts/figures/speedup.py"


rule flash_latency:
    """Attention implementations: time against sequence length."""
    input:
        table=TABLES["flash"],
    output:
        figure("flash_latency", "FlashAttention"),
    log:
        f"{RESULTS}/logs/figures/flash_latency.log",
    params:
        quantity="latency",
        source=source_digest("scripts.figures.flash"),
    script:
        "../scripts/figures/flash.py"


use rule flash_latency as flash_throughput with:
    output:
        figure("flash_throughput", "FlashAttention"),
    log:
        f"{RESULTS}/logs/figures/flash_throughput.log",
    params:
        quantity="throughput",
        source=source_digest("scripts.figures.flash"),


use rule flash_latency as flash_memory with:
    output:
        figure("flash_memory", "FlashAttention"),
    log:
        f"{RESULTS}/logs/figures/flash_memory.log",
    params:
        quantity="memory",
        source=source_digest("scripts.figures.flash"),
