"""Who is faster on the device, by numbers worked out by hand: made-up calls of attention, ms."""

import pytest

from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.flash_ablation import FlashAblation
from scripts.answers import pytorch_attention
from scripts.answers.flash_benchmarking.ablation import ablation
from scripts.answers.torch_compile import steps_to_pay
from scripts.views.attention_times import call_table, duels, score, strongest
from tests.support.tables import GPU, plain, table


def calls(*cells):
    """A table of calls: implementation, sequence, and the medians of each metric."""
    return call_table(
        table(
            "flash",
            GPU,
            {
                Flash(implementation=name, sequence=sequence): {metric: [ms] * 3 for metric, ms in metrics.items()}
                for name, sequence, metrics in cells
            },
        )
    )


def passes(forward, backward, both, **others):
    """The metrics of a cell."""
    return {"forward": forward, "backward": backward, "forward_backward": both, **others}


@pytest.mark.parametrize(
    ("metrics", "waits", "host_bound", "time"),
    [
        # A replayed graph tells the device's time, whether or not the calls wait for the host.
        (passes(0.1, 0.2, 0.3, graph=0.28, host=100.0), False, False, 0.28),
        (passes(0.1, 0.2, 0.3, graph=0.05, host=290.0), True, False, 0.05),
        # Without one, the calls do, unless they wait.
        (passes(0.06, 0.19, 0.42), True, True, 0.42),
        (passes(0.1, 0.2, 0.31, host=100.0), False, False, 0.31),
    ],
)
def test_whose_time_a_call_is(metrics, waits, host_bound, time):
    cell = calls(("triton", 8192, metrics)).iloc[0]
    assert (cell["waits"], cell["host_bound"], cell["median"]) == (waits, host_bound, pytest.approx(time))


def test_the_score_counts_what_can_be_told_and_names_the_strongest():
    long = {"sdpa_flash": (8.0, 6.0, 4.0, 2.0), "sdpa_cudnn": (5.0, 3.0, 1.8, 2.0)}
    lengths = (16384, 8192, 4096, 2048)
    mine = [("triton", length, passes(1.0, 1.0, 2.0)) for length in lengths]
    mine[2] = ("triton", 4096, passes(0.2, 0.2, 0.9))  # host-bound: not counted
    others = [
        (name, length, passes(ms / 2, ms / 2, ms))
        for name, times in long.items()
        for length, ms in zip(lengths, times, strict=True)
    ]
    met = duels(calls(*mine, *others), "triton")
    scores = {name: score(met[met["implementation"] == name]) for name in long}
    assert scores["sdpa_flash"].text == "2 / 1 / 0"
    assert scores["sdpa_flash"].ratio == pytest.approx(3.0)
    assert strongest(met, long) == "sdpa_cudnn"
    assert "ours is 1.50× as fast as it" in plain(scores["sdpa_cudnn"].sentence("it", "There"))


def test_what_the_costliest_reversal_costs():
    # Ratios of one pipeline stage fewer: 2 and 3; of pointers: 3 and 1.
    times = {"nothing": (1.0, 2.0), "stage": (2.0, 6.0), "descriptors": (3.0, 2.0)}
    cells = {
        FlashAblation(without=name): {"forward": [forward] * 3, "backward": [backward] * 3}
        for name, (forward, backward) in times.items()
    }
    found = ablation(table("flash_ablation", GPU, cells))
    assert plain(found.verdict).endswith("_one pipeline stage fewer_: 2.50× the time (median).")


def test_the_account_of_plain_attentions_memory():
    # Batch 8: vectors take 1 MiB at 2048 tokens, scores 128 MiB. Five and one of them, and 10 MiB at both lengths.
    cells = {
        Attention(sequence=sequence, d=16): {
            "forward": [1.0] * 100,
            "backward": [2.0] * 100,
            "memory_before_backward": kept,
            "peak_memory": peak,
        }
        for sequence, kept, peak in ((1024, 44.5, 141.0), (2048, 143.0, 528.0))
    }
    found = pytorch_attention.answers({"attention": table("attention", GPU, cells)})["memory"]
    assert found.evidence[0].table.rows == [
        ["scores-sized tensors", "128.0", "1", "4"],
        ["Q, K, V, O and gradients", "1.0", "5", "6"],
        ["constant", "10.0", "1", "1"],
        ["together / MiB", "", "143.0", "528.0"],
        ["measured / MiB", "", "143.0", "528.0"],
    ]
    assert "96 %" in plain(found.verdict).replace("\u202f", " ")  # 128 of 133


@pytest.mark.parametrize(("eager", "compiled", "steps"), [(20.0, 10.0, 400), (10.0, 12.0, None)])
def test_when_compiling_has_paid(eager, compiled, steps):
    assert steps_to_pay(4.0, eager, compiled) == steps
