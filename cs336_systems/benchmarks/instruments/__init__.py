"""Instruments of the card: each lists its timed workloads, and the amount of work in one repetition."""
