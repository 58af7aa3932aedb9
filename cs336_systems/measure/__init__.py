"""Instruments: what the machine is, how long a step takes, how much memory it needs, and the CSV record of it all."""
