"""Definitions of experiments: parameters (command-line options and CSV columns) and metrics. No torch here."""
