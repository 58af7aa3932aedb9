"""Layers without a bias, as the handout names them."""

import torch
from torch import nn


class Linear(nn.Module):
    """y = x W^T with W [d_out, d_in]."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) / d_in**0.5)

    def forward(self, x):
        """[..., d_in] to [..., d_out]."""
        return x @ self.weight.T


class Embedding(nn.Module):
    """A row of W [rows, d] for each token."""

    def __init__(self, rows: int, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, d))

    def forward(self, token_ids):
        """[...] to [..., d]."""
        return self.weight[token_ids]
