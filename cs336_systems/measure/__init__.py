"""Instruments: time and memory of a step, kernels, clocks, and the traces behind them."""
