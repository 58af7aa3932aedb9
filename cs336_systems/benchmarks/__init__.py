"""How each experiment is measured: one module an experiment, run as `python -m cs336_systems.benchmarks.NAME`."""
