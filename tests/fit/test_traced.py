"""Traces on the meta device against peaks that a GPU's allocator recorded."""

import csv

import pytest
import torch
from torch import nn

from cs336_systems.fit.decoder import Decoder
from cs336_systems.fit.presets import PRESETS
from cs336_systems.fit.replay import Sharing, peak_of
from cs336_systems.fit.traced import fit, mean_square
from cs336_systems.fit.tracing import next_token, trace_step
from tests.fit.architectures import ARCHITECTURES
from tests.samples import ROOT

WITHIN = 0.02
with (ROOT / "tests/data/traced_peaks.csv").open() as file:
    ON_H100 = list(csv.DictReader(file))
CONVOLUTIONS = {"ViT", "U-Net"}
"""Architectures whose convolutions need memory while they run, which the library chooses by the GPU."""


def is_quick(row):
    """Each architecture once, one model in all precisions, one whose autocast ends with the loss, and one sharded."""
    with_the_loss = row["loss_in_autocast"] == row["checkpointed"] == "True"
    if row["name"] == "smollm2-135m":
        return with_the_loss or row["scheme"] == "FSDP"
    return row["name"] == "gpt2" or (row["precision"] == "bf16" and row["width"])


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if is_quick(row) else [pytest.mark.slow]) for row in ON_H100],
    ids=lambda row: f"{row['name']} {row['precision']} {row['scheme']}{' again' * (row['checkpointed'] == 'True')}",
)
def test_peaks_that_an_h100_measured(row):
    """Three blocks of each architecture, and published models whole."""
    shape = [int(size) for size in row["shape"].split("x")]
    ids = torch.empty(shape, dtype=torch.int64 if len(shape) == 2 else torch.float32, device="meta")
    if row["width"]:
        build, loss = (lambda: ARCHITECTURES[row["name"]][0](int(row["width"]))), mean_square
    else:
        build, loss = (lambda: Decoder(PRESETS[row["name"]])), next_token
    options = {name: row[name] == "True" for name in ("checkpointed", "loss_in_autocast")}
    trace = trace_step(build, [ids], loss, precision=row["precision"], **options)
    sharing = Sharing(scheme=row["scheme"], ranks=int(row["ranks"]))
    predicted, measured = peak_of(trace, sharing).total, int(row["peak_bytes"])
    assert predicted < (1 + WITHIN) * measured
    if row["name"] not in CONVOLUTIONS:
        assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_weights_as_published(name):
    with torch.device("meta"):
        model = Decoder(PRESETS[name])
    assert sum(parameter.numel() for parameter in model.parameters()) == PRESETS[name].parameters


def test_a_module_and_the_shape_of_its_input_are_enough():
    answer = fit(lambda: nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)), (4, 32), gpu="L4", gpus=2)
    assert [way.way for way in answer.ways] == ["data parallel", "ZeRO-1", "ZeRO-2", "FSDP"]
    assert answer.sentence().startswith("Yes: ")
    assert "4 x 32 tokens" in str(answer)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gpus": 0}, "gpus is 0; allowed: at least 1"),
        ({"gpus": 1.5}, "gpus is 1.5; allowed: "),
        ({"gpu": 5}, "gpu is 5; allowed: "),
        ({"precision": "fp16"}, "precision is 'fp16'; allowed: 'fp32' or 'bf16'"),
        ({"price": float("nan")}, "price is nan; allowed: a finite number"),
        ({"inputs": ()}, r"inputs is \(\); allowed: a shape of token ids"),
        ({"inputs": (4, 0)}, r"inputs is \(4, 0\); allowed: a shape"),
        ({"inputs": "ids"}, "inputs is ids; allowed: a shape"),
        ({"loss": mean_square, "build": lambda: Integers(8, 8)}, "its output has no floating-point tensor"),
        (
            {"inputs": (2, 8), "build": lambda: Named(8, 8)},
            "its output is a dict; allowed: logits, or in Python your own `loss`",
        ),
        ({"build": lambda: nn.LazyLinear(8)}, "cannot be run on the meta device: "),
    ],
)
def test_an_argument_without_sense_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(**{"build": lambda: nn.Linear(8, 8), "inputs": [torch.empty(2, 8)]} | arguments)


class Named(nn.Embedding):
    def forward(self, ids):
        return {"logits": super().forward(ids)}


def test_a_module_with_data_stays_as_it_is():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)), nn.BatchNorm1d(8)).eval()
    model[1].weight = model[0].weight
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for build in (lambda: model, model):
        assert str(fit(build, [torch.empty(2, 8)])) == str(fit(fresh, [torch.empty(2, 8)]))
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def fresh():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)), nn.BatchNorm1d(8))
    model[1].weight = model[0].weight
    return model


class Integers(nn.Linear):
    def forward(self, x):
        return super().forward(x).argmax(-1)


def test_memory_of_convolutions_is_a_lower_bound():
    small, large = (fit(lambda: nn.Conv2d(3, 8, 3), [torch.empty(n, 3, 16, 16, device="meta")]) for n in (2, 2**26))
    assert [way.way for way in small.ways] == ["autocast", "bf16 weights"]
    assert small.sentence().startswith("Perhaps: ")
    assert "plus convolution workspaces, which are not predicted" in small.sentence()
    assert small.tokens_per_second(small.best) == 2 / small.best.host_seconds
    assert all("≥" in line for line in str(small).splitlines() if line.strip().startswith(("autocast", "bf16 w")))
    assert large.sentence().startswith("No: even the smallest configuration ")


def test_attention_of_published_models_is_a_flash_kernels_work():
    trace = trace_step(
        lambda: Decoder(PRESETS["gpt2"]), [torch.zeros(1, 1024, dtype=torch.int64)], next_token, precision="bf16"
    )
    pairs = 12 * 12 * 1024 * (512 + 128)
    assert trace.work["flash_matmuls"] == 3.5 * 4 * 64 * pairs
    matmuls = 6 * 1024 * (PRESETS["gpt2"].parameters - 1024 * 768)
    assert trace.work["bf16_matmuls"] == pytest.approx(matmuls, rel=0.01)
