"""Attention, from the textbook formula to FlashAttention-2 kernels in Triton."""

from cs336_systems.attention.flash import flash_attention
from cs336_systems.attention.plain import plain_attention
from cs336_systems.attention.tiled import TiledFlashAttention
from cs336_systems.attention.varlen import flash_attention_varlen

__all__ = ["TiledFlashAttention", "flash_attention", "flash_attention_varlen", "plain_attention"]
