"""Attention, from the textbook formula to FlashAttention-2 kernels in Triton."""

from cs336_systems.attention.flash import flash_attention
from cs336_systems.attention.plain import plain_attention
from cs336_systems.attention.tiled import TiledFlashAttention

__all__ = ["TiledFlashAttention", "flash_attention", "plain_attention"]
