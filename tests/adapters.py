"""Where the course's tests attach: the names that its test suite imports, each one line to this project's code."""

import torch

from cs336_systems.attention import TiledFlashAttention


def get_flashattention_autograd_function_pytorch() -> type[torch.autograd.Function]:
    """FlashAttention-2 in tiled PyTorch: apply(q, k, v, is_causal) on [batch, sequence, d]."""
    return TiledFlashAttention


def get_flashattention_autograd_function_triton() -> type[torch.autograd.Function]:
    """FlashAttention-2 in Triton: apply(q, k, v, is_causal) on [batch, sequence, d]. Needs Triton and a GPU."""
    from cs336_systems.attention.triton_attention import TritonFlashAttention

    return TritonFlashAttention
