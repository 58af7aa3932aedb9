"""Instruments: machine, time and memory of a step, kernels, and the CSV record."""
