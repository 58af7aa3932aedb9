"""Data types by the names in experiments and in the record."""

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name for a type: float32, bfloat16, …"""
    return str(dtype).removeprefix("torch.")
