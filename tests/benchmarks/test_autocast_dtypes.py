"""Data types under autocast."""

import pytest
import torch

from cs336_systems.benchmarks import autocast_dtypes
from cs336_systems.experiments.autocast_dtypes import AutocastDtypes


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("autocast", "low"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_autocast_lowers_products_and_keeps_weights_loss_and_gradients(autocast, low, device):
    rows = autocast_dtypes.measure(AutocastDtypes(autocast=autocast), torch.device(device))
    assert {measurement.metric: measurement.value for measurement in rows} == {
        "parameters": "float32",
        "fc1_output": low,
        # Autocast raises layer normalization to fp32 on CUDA devices only.
        "norm_output": "float32" if device == "cuda" else low,
        "logits": low,
        "loss": "float32",
        "gradients": "float32",
    }
