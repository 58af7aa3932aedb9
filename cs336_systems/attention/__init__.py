"""Attention, from the textbook formula to FlashAttention-2 kernels in Triton."""
