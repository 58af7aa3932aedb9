"""What the report says of communication and parallelism: every number is a closed form's, on every machine."""

import contextlib
import importlib
import math
import re

import pytest

from cs336_systems.accounting import leaderboard
from cs336_systems.accounting.accelerators import TPU_V5P
from cs336_systems.accounting.xxl import XXL
from scripts.draw import draw
from scripts.figures.parallelism import best_split
from scripts.rendering.contents import read_contents
from scripts.views.parallelism import EXAMPLE, MESH
from scripts.writeup import environment, picture_of, typeset
from tests.samples import ROOT, pdf_text, squeeze

NAMES = [
    "communication_accounting",
    "alternate_ring_all_reduce",
    "data_parallel_calcs",
    "fsdp_calcs",
    "tp_calcs",
    "fsdp_tp_calcs",
    "training_leaderboard",
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The text of the sections, typeset by themselves, without any table of measurements."""
    folder = tmp_path_factory.mktemp("pages")
    jinja = environment(ROOT / "report")
    figure = picture_of(read_contents(ROOT / "report" / "contents.yaml"), "a machine that no section may name")
    sections = {name: importlib.import_module(f"scripts.answers.{name}").answers({}) for name in NAMES}
    text = ['#import "/theme.typ": *', '#let picture = picture.with("/")', "#show: report"]
    for name in NAMES:
        text += [f"== {name}", jinja.get_template(f"sections/{name}.typ.j2").render(a=sections[name], figure=figure)]
    text.append('#bibliography("/references.bib")')
    return folder, typeset_here(folder, "\n".join(text))


def typeset_here(folder, text):
    for name in ("theme.typ", "references.bib"):
        (folder / name).write_bytes((ROOT / "report" / name).read_bytes())
    (folder / "text.typ").write_text(text, encoding="utf-8")
    with contextlib.chdir(folder):
        for name in re.findall(r'#picture\("(\w+)"', text):
            draw({"mesh_batch": "mesh", "parallelism_times": "parallelism"}[name], {}, f"{name}.svg")
        typeset(folder / "text.typ", folder / "text.pdf")
    return pdf_text(folder / "text.pdf")


def says(pages, *texts):
    found = pages[1]
    return all(squeeze(text) in found for text in texts)


def test_the_state_of_xxl_and_what_it_fits_on(pages):
    state = 16 * XXL.parameters
    assert says(pages, f"state take {state / 1e9:.0f} GB, as much as {math.ceil(state / 80e9)} H100s of 80 GB")
    assert says(pages, f"the state would seem to fit into {math.ceil(state / 2**30 / 80)}.")
    assert says(pages, f"each token adds {2 * 126 * (16384 + 53248) / 1e6:.1f} MB")

    def least(tokens):
        half = tokens * XXL.saved_bytes / 2
        return next(n for n in range(1, 999) if (state + half) / n + half < 95e9)

    assert says(pages, f"The state alone needs 𝑁 = {least(0)}; with 𝐵 = 4096 tokens 𝑁 = {least(4096)} is the least")
    assert says(pages, f"half on every device(16𝑃+𝐴/2)/𝑁+𝐴/2 {least(1024)} {least(4096)} none")
    assert says(pages, f"with 4096 tokens it is {math.ceil((state + 4096 * XXL.saved_bytes) / 80e9)} H100s")
    most = next(tokens for tokens in range(10**5) if tokens * XXL.saved_bytes / 2 >= 95e9)
    assert says(pages, f"From {most // 1000} {most % 1000} tokens on")


def test_the_least_batch_is_that_of_the_mesh(pages):
    alpha = TPU_V5P.flops / TPU_V5P.bandwidth
    batch, in_turn = alpha / 8, alpha / 8 / (1 - alpha * 4 / 53248)
    assert says(pages, f"= {batch:.1f} tokens per device", f"{math.ceil(batch)} whole tokens on each device")
    assert says(pages, f"= {in_turn:.1f} tokens per device")
    overall = math.ceil(batch) * 64
    assert says(pages, f"{overall // 1000} {overall % 1000} in the overall batch")
    for factor in (1, 4):
        best = factor * alpha**2 / (2 * 53248)
        assert says(pages, f"{best:.1f} {best / batch:.2f}×")


def test_the_examples_limits_are_the_closed_forms(pages):
    assert says(pages, f"in the example {math.floor(EXAMPLE.batch_limit)}, as in data parallelism")
    tensor = math.floor(EXAMPLE.tensor_backward_limit), math.floor(EXAMPLE.tensor_forward_limit)
    assert says(pages, f"in the example {tensor[0]}, and {tensor[1]} in the forward pass")
    gain = EXAMPLE.mixed_limit(overlapped=True) / EXAMPLE.mixed_limit(overlapped=False)
    assert says(pages, f"a quarter of the devices: {gain:.2f}× fewer here")


@pytest.mark.parametrize("overlapped", [True, False])
def test_the_drawn_split_crosses_at_the_limit(overlapped):
    limit = EXAMPLE.mixed_limit(overlapped=overlapped)
    times = best_split(limit, overlapped=overlapped)
    assert times.communication == pytest.approx(times.compute)
    assert not best_split(1.01 * limit, overlapped=overlapped).is_compute_bound
    assert best_split(0.99 * limit, overlapped=overlapped).is_compute_bound


def test_no_machine_is_named(pages):
    assert not says(pages, "a machine that no section may name")


def test_the_mesh_is_the_handouts():
    assert (MESH.fsdp, MESH.tensor, MESH.fsdp_axes, MESH.tensor_axes) == (16, 4, 2, 1)
    assert (TPU_V5P.flops, TPU_V5P.bandwidth, TPU_V5P.memory) == (4.6e14, 1.8e11, 95e9)


def test_the_leaderboards_step_by_hand(pages):
    """34 blocks of 4 · 4096² + 3 · 4096 · 11008 weights; 65536 tokens, each of which sees 16384 others on average."""
    blocks, head, tokens = 34 * (4 * 4096**2 + 3 * 4096 * 11008), 151936 * 4096, 65536
    assert blocks + 2 * head + (2 * 34 + 1) * 4096 == leaderboard.PARAMETERS
    flops = leaderboard.step_flops()
    assert flops["projections"] == 6 * blocks * tokens
    assert flops["head"] == 6 * head * tokens
    assert flops["attention"] == 3 * 34 * 4 * tokens * 16384 * 4096
    kept = 34 * 4 * 32768 * 4096  # each block's input, in fp32
    assert kept < leaderboard.saved_bytes(1) < kept + 8 * 32768 * (151936 + 3 * 4096) < leaderboard.saved_bytes(0)
    assert says(pages, "The model has 8.13 billion weights", "they take two NVIDIA B200s 1.05 s")
    assert says(pages, "the handout gives its times there, 3.837 s for the record and 10.0 s for a naive step")
