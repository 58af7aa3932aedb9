"""`python -m cs336_systems.fit`: its command line, and the planned cells that it refuses."""

import json
import subprocess
import sys

import pytest
from torch import nn

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.fit.__main__ import main
from cs336_systems.fit.gpus import gpu_of_label, memory_of
from cs336_systems.fit.planned import too_large
from cs336_systems.measure.gpus import GPUS
from cs336_systems.model import TransformerLM
from cs336_systems.record.machine import machine_label
from tests.samples import ROOT


class Tied(TransformerLM):
    """A model whose head has the embedding's weight."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.lm_head.weight = self.token_embedding.weight


class NoModel(nn.Module):
    """A class with other arguments."""

    def __init__(self, width):
        super().__init__()


def answer(capsys, *arguments):
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_table_and_its_parts(capsys):
    main(["--size", "2.7B", "--context", "2048", "--gpus", "2"])
    text = capsys.readouterr().out
    assert "2.7B on 2 x NVIDIA H200" in text
    assert all(way in text for way in ("data parallel", "ZeRO-1", "ZeRO-2", "FSDP, checkpointed"))
    ways = answer(capsys, *["--size", "2.7B", "--context", "2048", "--gpus", "2"])["ways"]
    for way in ways:
        parts = {key: value for key, value in way["memory"].items() if key != "total"}
        assert sum(parts.values()) == way["memory"]["total"] > 0
        assert way["seconds"] > 0


def test_a_model_too_large_for_one_gpu_fits_on_several(capsys):
    alone, four = (answer(capsys, "--size", "10B", "--gpus", gpus)["ways"] for gpus in ("1", "4"))
    assert {way["outcome"] for way in alone} == {"does not fit"}
    assert {way["way"]: way["outcome"] for way in four}["FSDP, plain"] == "fits"


def test_blocks_are_recomputed_until_a_step_fits(capsys):
    found = answer(capsys, *["--size", "10B", "--batch-size", "1", "--context", "32768", "--gpus", "4"])
    *_, whole, recomputed = found["ways"]
    assert (whole["outcome"], recomputed["outcome"]) == ("does not fit", "fits")
    assert recomputed["memory"]["total"] > 0.9 * (found["capacity"] - 5e9)  # no more of them than it takes


def test_another_gpus_errors_are_said_to_be_unknown(capsys):
    main(["--size", "small", "--gpu", "L4"])
    assert "Nothing is recorded on this GPU" in capsys.readouterr().out
    assert answer(capsys, "--gpu", "L4")["time_error_elsewhere"] == 0.3


def test_weights_of_another_class_are_counted_and_tied_ones_once(capsys):
    arguments = ["--size", "nano", "--vocab-size", "1009", "--precision", "fp32"]
    own = answer(capsys, *arguments)["ways"][0]["memory"]["parameters"]
    tied = answer(capsys, *arguments, "--model", "tests.fit.test_fit:Tied")["ways"][0]["memory"]["parameters"]
    assert own - tied == 4 * 1009 * 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--gpus 0", "gpus is 0"),
        ("--gpu A100-80GB", "the GPU is 'A100-80GB'; allowed: NVIDIA A100-SXM4-80GB or NVIDIA A100 80GB PCIe"),
        ("--gpu MI250", "the GPU is 'MI250'; allowed: one with an entry in"),
        ("--size gigantic", "size is 'gigantic'; allowed: "),
        ("--size odd:d_model=100,d_ff=10,num_layers=1,num_heads=3", "num_heads is 3, which does not divide"),
        ("--size none:d_model=0,d_ff=10,num_layers=1,num_heads=1", "d_model is 0; allowed: whole numbers from 1"),
        ("--model nowhere:Model", "model 'nowhere:Model' cannot be loaded"),
        ("--model tests.fit.test_fit:NoModel", "model 'tests.fit.test_fit:NoModel' cannot be built"),
    ],
)
def test_bad_input_gets_one_sentence(capsys, arguments, said):
    with pytest.raises(SystemExit) as exit_:
        main(arguments.split())
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said in error
    assert error.count("\n") == 1


def test_it_runs_without_torch():
    program = (
        "import sys\nfrom cs336_systems.fit.__main__ import main\n"
        "main(['--size', 'xl', '--gpus', '3'])\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_listed_gpu_has_a_memory_and_a_label():
    for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA GeForce RTX 4090"):
        assert gpu_of_label(machine_label(name)) in GPUS
        assert memory_of(name) > 0
    assert gpu_of_label("cpu") is gpu_of_label("nvidia-h900") is None


def test_cells_that_cannot_fit_are_told_and_others_tried():
    step = EndToEnd(size="10B", context=128)
    assert too_large(step, "nvidia-h200").startswith("its step needs 20")
    assert too_large(EndToEnd(size="10B", context=128, mode="forward_backward"), "nvidia-h200") == ""
    assert too_large(EndToEnd(size="10B", context=128, model="tests.fit.test_fit:Tied"), "nvidia-h200") == ""
    assert too_large(step, "cpu") == too_large(step, "nvidia-h900") == ""
    assert too_large(FullyShardedTraining(size="10B", precision="bf16"), "nvidia-h200") == ""  # sharded, it fits
