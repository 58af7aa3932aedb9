"""Bytes."""

FP32_BYTES = 4
MIB = 2**20
