"""Units of memory."""

FP32_BYTES = 4
BYTES = {"fp32": FP32_BYTES, "bf16": 2}
"""Bytes per element in each precision."""
MIB = 2**20
