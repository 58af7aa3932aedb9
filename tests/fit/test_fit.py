"""`python -m cs336_systems.fit`: its command line, and the planned cells that it refuses."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from torch import nn

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.fit.__main__ import main
from cs336_systems.fit.planned import describe_too_large, too_large
from cs336_systems.model import TransformerLM
from tests.samples import ROOT


def Raises(**options):
    raise AssertionError("two\nlines")


def Exits(**options):
    sys.exit()


def Weightless(**options):
    return nn.Module()


def NoModule(**options):
    return 5


def NoModel(width):
    """A class with other arguments than a model."""


class Chooses(TransformerLM):
    """A model whose shapes depend on numbers."""

    def forward(self, token_ids):
        x = super().forward(token_ids)
        return x[x > 0]


def answer(capsys, *arguments):
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_table_has_the_numbers_of_the_answer(capsys):
    arguments = ["--size", "2.7B", "--gpus", "2", "--price", "3.6"]
    ways = answer(capsys, *arguments)["ways"]
    main(arguments)
    _, title, table, *_ = capsys.readouterr().out.split("\n\n")
    assert title.startswith("2.7B, vocabulary 10000 on 2 x NVIDIA H200")
    head, *lines = table.splitlines()
    columns = ["fits", "GB", "weights", "gradients", "optimizer", "activations", "copies", "temporary", "rest"]
    places = [head.index(name) + len(name) for name in ("GB", "gradients", "optimizer", "ms", "price/M tokens")]
    assert [head.index(name) for name in columns] == sorted(head.index(name) for name in columns)
    for way, line in zip(ways, lines, strict=True):
        assert line.strip().startswith(way["way"])
        assert 2 * way["memory"]["total"] == sum(way["memory"].values())
        total, gradients, optimizer, ms, price = (float(line[:place].split()[-1]) for place in places)
        assert total == pytest.approx((way["memory"]["total"] + way["outside"]) / 1e9, abs=0.06)
        assert gradients == pytest.approx(way["memory"]["gradients"] / 1e9, abs=0.06)
        assert optimizer == pytest.approx(way["memory"]["optimizer_state"] / 1e9, abs=0.06)
        assert ms == pytest.approx(1e3 * way["seconds"], rel=0.006)
        assert price == pytest.approx(way["price_per_million_tokens"], rel=0.006)


def test_a_model_too_large_for_one_gpu_fits_on_several(capsys):
    alone, four = (answer(capsys, "--size", "10B", "--gpus", gpus) for gpus in ("1", "4"))
    assert {way["outcome"] for way in alone["ways"]} == {"does not fit"}
    assert alone["answer"].startswith("No: even the smallest configuration (bf16 weights, fused")
    assert " GB on each of 2 GPUs" in alone["answer"]
    assert {way["way"]: way["outcome"] for way in four["ways"]}["FSDP, plain"] == "fits"
    assert four["answer"].startswith("Yes: ")


def test_blocks_are_recomputed_until_a_step_fits(capsys):
    printed = answer(capsys, *["--size", "10B", "--batch-size", "1", "--context", "32768", "--gpus", "4"])
    *_, whole, recomputed = printed["ways"]
    assert (whole["outcome"], recomputed["outcome"]) == ("does not fit", "fits")
    assert recomputed["memory"]["total"] > 0.9 * (printed["capacity"] - 5e9)  # no more of them than it takes


def test_another_gpus_errors_are_said_to_be_unknown(capsys):
    main(["--size", "small", "--gpu", "L4"])
    assert "No steps are recorded on this GPU" in capsys.readouterr().out
    assert answer(capsys, "--gpu", "L4")["time_error_elsewhere"] == 0.3


def test_a_recorded_gpus_errors_are_those_measured_on_it(capsys):
    way = answer(capsys, "--gpu", "NVIDIA H100 80GB HBM3")["ways"][0]
    assert way["time_error"]["cells"] < answer(capsys)["ways"][0]["time_error"]["cells"]
    main(["--gpu", "NVIDIA H100 80GB HBM3"])
    text = capsys.readouterr().out
    assert "of 85.5 GB" in text  # as its driver reports, not its data sheet
    assert "the time model was not fitted to them" in text


def test_the_fastest_way_that_fits_is_the_answer(capsys):
    printed = answer(capsys, "--size", "2.7B", "--price", "3.6")
    best = max((way for way in printed["ways"] if way["outcome"] == "fits"), key=lambda way: way["tokens_per_second"])
    rate = 4 * 512 / best["seconds"]
    assert best["tokens_per_second"] == pytest.approx(rate)
    assert best["price_per_million_tokens"] == pytest.approx(3.6 / 3600 * 1e6 / rate)
    assert best["way"] in printed["answer"]
    assert f"{best['price_per_million_tokens']:.3g} per million tokens" in printed["answer"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--gpus 0", "gpus is 0"),
        ("--gpu A100-80GB", "the GPU is 'A100-80GB'; allowed: NVIDIA A100-SXM4-80GB or NVIDIA A100 80GB PCIe"),
        ("--gpu MI250", "the GPU is 'MI250'; allowed: V100-SXM2-16GB, "),
        ("--size gigantic", "size is 'gigantic'; allowed: "),
        ("--size deep:d_model=4,d_ff=4,num_layers=2000000000,num_heads=2", "num_layers is 2000000000; allowed: "),
        ("--size own:d_model=4,d_ff=4,num_layers=2,num_heads=2", "vocab_size is missing"),
        ("--context 1000000000000000000000000000000", "context is 1000000000000000000000000000000; allowed: "),
        ("--price nan", "price is nan; allowed: a finite number"),
        ("--price 0", "price is 0.0; allowed: above 0"),
        ("--model llama", "model is 'llama'; allowed: gpt2, "),
        ("--model gpt2 --size small", "size is 'small', but gpt2 has its own"),
        ("--model gpt2 --context 2048", "context is 2048; gpt2 allows whole numbers up to 1024"),
        ("--model gpt2 --attention plain", "attention is 'plain', but gpt2 has its own; leave attention out"),
        ("--model nowhere:Model", "model 'nowhere:Model' cannot be loaded"),
        ("--model builtins:int", "model 'builtins:int' cannot be called: no signature found"),
        ("--model tests.fit.test_fit:NoModel", "model 'tests.fit.test_fit:NoModel' cannot be called"),
        ("--model tests.fit.test_fit:Raises", "cannot be built on the meta device: AssertionError: two"),
        ("--model tests.fit.test_fit:Exits", "cannot be built on the meta device: SystemExit"),
        ("--model tests.fit.test_fit:Weightless", "the model has no weights to train"),
        ("--model tests.fit.test_fit:NoModule", "the model is of type int; allowed: a torch.nn.Module"),
        ("--size nano --context 8 --model tests.fit.test_fit:Chooses", "cannot be run on the meta device: "),
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


def test_cells_that_cannot_fit_are_told_and_others_tried():
    step = EndToEnd(size="10B", context=128)
    assert too_large(step, "nvidia-h200").startswith("it needs 20")
    assert too_large(EndToEnd(size="10B", context=128, mode="forward_backward"), "nvidia-h200") == ""
    assert too_large(EndToEnd(size="10B", context=128, model="tests.fit.test_fit:Chooses"), "nvidia-h200") == ""
    assert too_large(step, "cpu") == too_large(step, "nvidia-h900") == ""
    assert too_large(FullyShardedTraining(size="10B", precision="bf16"), "nvidia-h200") == ""  # sharded, it fits
    assert list(describe_too_large([step, Flash(sequence=10**9)], "nvidia-h200")) == [
        f"end_to_end, 10B, context 128, fp32: {too_large(step, 'nvidia-h200')}",
        "flash, sequence 1000000000, bf16: it needs 768 GB by closed form, and the GPU has 151",
    ]


@pytest.mark.parametrize(
    ("page", "answer"), [("docs/what-fits.md", r"```.*?```text\n(.*?)\n```"), ("README.md", r"# (.*?)\n")]
)
def test_the_documented_answer_is_todays(capsys, page, answer):
    text = (ROOT / page).read_text()
    command, answer = re.search(rf"^cs336-systems fit ([^\n]*)\n{answer}", text, re.DOTALL | re.MULTILINE).groups()
    main(shlex.split(command))
    assert capsys.readouterr().out.startswith(f"{answer}\n")
