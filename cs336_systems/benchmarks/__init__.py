"""Measurements: one module per experiment, run as `python -m cs336_systems.benchmarks NAME`."""
