"""The headline table of README.md and the release notes, from recorded rows, computed by the report's views."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pandas import DataFrame, Series

from cs336_systems.compare.speed import SAME, UNDECIDED
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.answers.fsdp import against_pytorch
from scripts.docs.markdown import table, with_table
from scripts.rendering.markup import milliseconds
from scripts.views.attention_calls import OURS
from scripts.views.attention_times import call_table
from scripts.views.closed_forms import sized
from scripts.views.comparison import Duel, contenders, duels
from scripts.views.data import at_one_setting, first, load_recorded, one, select
from scripts.views.data_parallel import PYTORCH, wrappers
from scripts.views.training_ladder import ends, fastest, rung_table
from scripts.views.verdicts import against

RECORDED = Path("recorded/nvidia-h200/raw")
COMPARED = ("this project", "speedup over")
"""Titles of the columns of numbers."""
PYTORCH_ATTENTION = [each.name for each in Flash.contenders if each.foreign and not each.package]
SETTING = ("size", "precision", "compiled")
"""Values that the rows of a step on several GPUs share."""
RUNGS = {"autocast": "bf16 autocast, eager", "compiled": "bf16 weights, blocks compiled"}


def page(text: str) -> str:
    """The text of a page with the table of the recorded results."""
    header = ["on NVIDIA H200, bf16", *COMPARED]
    return with_table(text, "headlines", table(header, headlines(RECORDED), right=[1]))


def headlines(raw: Path) -> Iterator[list[str]]:
    """The rows of the table for which a recorded machine has measurements."""
    tables = {name: at_one_setting(name, rows) for name, rows in load_recorded(raw).items()}
    yield from attention(tables["flash"])
    yield from ladder(tables["training_ladder"])
    gains = duels(wrappers(tables), ["symmetric_memory"], PYTORCH)
    yield from duel(gains, "data-parallel training step", "tuned DistributedDataParallel")
    gains = against_pytorch(contenders(FullyShardedTraining, tables["fsdp"]))
    yield from duel(gains, "fully sharded training step", "`fully_shard`")


def attention(flash: DataFrame) -> Iterator[list[str]]:
    """Forward and backward by the handout's protocol, at both head dimensions of its leaderboard."""
    means = select(flash, metric="handout", compiled_call=True).set_index(["implementation", "d"])["mean"]
    cells = select(call_table(flash), compiled_call=True)
    cells["shown"] = [means.get((row["implementation"], row["d"])) for _, row in cells.iterrows()]
    for d in sorted(cells["d"].unique()):
        here = select(cells, d=d).dropna(subset="shown").sort_values("shown")
        own = one(here, implementation=OURS)
        others = {
            "PyTorch’s fastest backend": first(here[here["implementation"].isin(PYTORCH_ATTENTION)]),
            "FlashAttention-4": one(here, implementation="flash_attention_4"),
        }
        yield from line(f"causal attention, 16 heads × 16 384 tokens, d = {d}: forward + backward", own, others)


def ladder(rows: DataFrame) -> Iterator[list[str]]:
    """The fastest training step of the largest model."""
    for rungs in ends(rung_table(rows))[-1:]:
        own, rungs = fastest(rungs), rungs.assign(shown=rungs["step"])
        others = {title: one(rungs, rung=name) for name, title in RUNGS.items()}
        what = f"{sized(own)}, {own['batch_size']} × {own['context']} tokens: training step with fp32 master weights"
        yield from line(what, Series({**own, "shown": own["step"]}), others)


def duel(duels: list[Duel], what: str, rival: str) -> Iterator[list[str]]:
    """Ours against another in the cell of the report's verdict, followed by the same on other numbers of GPUs."""
    alike = [each for each in duels if all(each.first[name] == duels[0].first[name] for name in SETTING)]
    times = [[Series({**row, "shown": row["median"]}) for row in (each.first, each.other)] for each in alike]
    further = [
        f"; on {own['processes']} GPUs {milliseconds(own['shown'])} against {milliseconds(other['shown'])}: {words}"
        for own, other in times[1:]
        if (words := outcome(own, other))
    ]
    for each, (own, other) in zip(alike[:1], times[:1], strict=True):
        where = each.cell.removeprefix(f"{own['label']}, ")
        for *texts, rivals in line(f"{sized(own)}, {where}: {what}", own, {rival: other}):
            yield [*texts, rivals + "".join(further)]


def outcome(own: Series, other: Series | None) -> str:
    """The report's verdict on our `shown` ms next to another's; empty if there is none."""
    speed = against(own, other)
    if other is None or speed.verdict == UNDECIDED:
        return ""
    ratio = other["shown"] / own["shown"]
    faster = f"**{ratio:.2f}×**" if speed.faster else f"slower, {1 / ratio:.2f}× the time"
    return "on par" if speed.verdict == SAME else faster


def line(what: str, own: Series | None, others: Mapping[str, Series | None]) -> Iterator[list[str]]:
    """A row of the table: our `shown` ms next to others', with the report's verdict; no row without ours."""
    if own is None:
        return
    compared = [
        f"{title} ({milliseconds(other['shown'])}): {words}"
        for title, other in others.items()
        if other is not None and (words := outcome(own, other))
    ]
    yield [what, milliseconds(own["shown"]), ", ".join(compared)]
