"""What the report says of sharded training: on made-up tables, whose numbers are worked out anew; on a CPU; on none."""

import contextlib
import importlib

import pytest

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement
from cs336_systems.sizes import SIZES
from scripts.answers import fsdp as fsdp_answers
from scripts.answers import fsdp_accounting
from scripts.draw import draw
from scripts.rendering.contents import read_contents
from scripts.tables import merge
from scripts.views.comparison import contenders
from scripts.views.data import load, select
from scripts.writeup import environment, picture_of, typeset
from tests.samples import H200, ROOT, pdf_text, planned_cells, provenance, rows_of, squeeze, write_raw

HANDOUT = [
    FullyShardedTraining(size=size, processes=processes, precision=precision)
    for size, precision in (("2.7B", "fp32"), ("2.7B", "bf16"), ("10B", "bf16"))
    for processes in (2, 4)
]
NAMES = ["fsdp", "fsdp_accounting"]
CONTENTS = read_contents(ROOT / "report" / "contents.yaml")


def tables_of(folder, scale, outcome=lambda cell: None, **origin):
    tables = {}
    for name in ("fsdp", "all_reduce"):
        kept = [cell for cell in planned_cells(name, scale) if name == "fsdp" or cell.processes < 6]
        if (name, scale) == ("fsdp", "handout"):
            kept = HANDOUT
        raw = write_raw(folder, name, rows_of(kept, provenance(**origin), outcome))
        merge(name, [str(raw)], str(folder / f"{name}.csv"), "nvidia-h200" if origin else "cpu")
        tables[name] = load(name, folder / f"{name}.csv")
    return tables


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """A folder and its tables of the handout's grids. Not to be changed."""
    folder = tmp_path_factory.mktemp("h200")
    return folder, tables_of(folder, "handout", **H200)


def sections(folder, tables, gpu):
    """The text of both sections, typeset by themselves with their figures."""
    for name in ("theme.typ", "references.bib"):
        (folder / name).write_bytes((ROOT / "report" / name).read_bytes())
    text = ['#import "/theme.typ": *', '#let picture = picture.with("/")', "#show: report"]
    shown = []

    def figure(name):
        shown.append(name)
        return picture_of(CONTENTS, "a machine")(name)

    summary = {"machine": "a machine", "gpu": gpu}
    for name in NAMES:
        found = importlib.import_module(f"scripts.answers.{name}").answers(tables)
        template = environment(ROOT / "report").get_template(f"sections/{name}.typ.j2")
        text += [f"== {name}", template.render(a=found, summary=summary, figure=figure, reproduce=lambda name: "")]
    (folder / "text.typ").write_text("\n".join([*text, '#bibliography("/references.bib")']), encoding="utf-8")
    with contextlib.chdir(folder):
        for name in shown:
            draw(CONTENTS.figures[name].script, CONTENTS.figures[name].options, f"{name}.svg", table="fsdp.csv")
        typeset(folder / "text.typ", folder / "text.pdf")
    return pdf_text(folder / "text.pdf").replace("'", "’"), shown


def test_a_gpus_sections_say_what_was_measured(h200):
    folder, tables = h200
    text, shown = sections(folder, tables, "NVIDIA H200")
    assert shown == ["fsdp_timelines", "fsdp_gathers"]
    for words in (
        "shows the profiled steps with 2.7B, 2 GPUs, bf16",
        "Weights, gradients and moments of 10B take 205 GB, more than the 151 GB of one device",
        "sharded they take 103 GB with 2, 51.3 GB with 4 ranks",
        "It trains with 2 GPUs, bf16 and 4 GPUs, bf16",
        "each process needs 230.1 GB of memory",
        "as expected",
        "For 2.7B on 2 ranks the state shrinks from 50.8 GiB to 25.4 GiB per rank",
    ):
        assert squeeze(words) in text, words
    (tile,) = fsdp_answers.tiles(fsdp_answers.answers(tables))
    assert float(tile.number.removesuffix("×")) >= 1


def test_exposed_communication_leaves_the_optimizer_out(h200):
    rows = contenders(FullyShardedTraining, h200[1]["fsdp"])
    cell = select(rows, size="2.7B", processes=2, precision="fp32").set_index("contender")
    floor, ours = cell.loc["none"], cell.loc["fsdp"]
    assert ours["optimizer"] < 0.6 * floor["optimizer"]
    longer = ours["median"] - floor["median"] + floor["optimizer"] - ours["optimizer"]
    assert ours["exposed"] == pytest.approx(longer, abs=0.02 * floor["median"])
    assert ours["exposed"] > ours["median"] - floor["median"]
    assert select(rows, size="10B")["exposed"].isna().all()


def test_the_peak_of_2_7b_on_two_ranks():
    """Against the sum of what is there at the loss, in fp32, where most activations are."""
    shape = SIZES["2.7B"]
    block = BlockActivations(shape=shape, batch_size=4, context=512, precision="fp32", attention="plain")
    step = StepMemory(block=block, vocab_size=10_000, segment=0)
    model = FullySharded(shape=shape, vocab_size=10_000, ranks=2, precision="fp32")
    whole = 4 * (32 * (4 * 2560**2 + 3 * 2560 * 10240 + 2 * 2560) + 2 * 10_000 * 2560 + 2560)
    passing = 2 * 3 * 4 * 2560 * 10240
    activations = step.saved_for_backward + 2 * 4 * 2048 * 10_000
    at_loss = 1.5 * whole + activations + passing
    assert at_loss <= peak_bytes(model, step) * (1 + 1e-4)
    assert peak_bytes(model, step) < at_loss + 4 * 2560 * 10_000 + 2 * block.saved_bytes
    saving = step.peak - peak_bytes(model, step)
    assert saving == pytest.approx(1.5 * whole - passing, rel=0.01)


def test_waiting_is_that_of_units_whose_weights_are_late(h200):
    table = h200[1]["fsdp"]
    row = select(
        contenders(FullyShardedTraining, table), contender="fsdp", size="2.7B", processes=2, precision="fp32"
    ).iloc[0]
    needed, begins = (
        [
            float(x)
            for x in select(table, wrapper="fsdp", metric=metric, **row[["size", "processes", "precision"]])["samples"]
            .iloc[0]
            .replace("*", " ")
            .split()
        ]
        for metric in ("needed", "begins")
    )
    assert fsdp_accounting.waited(table, row) == pytest.approx(sum(begins) - sum(needed), abs=0.05)
    found = fsdp_accounting.answers(h200[1])["in_time"]
    assert found["cases"] == 12
    assert found["waited"]["least"][0] > 0


def test_a_cpus_sections_speak_of_no_gpu(tmp_path):
    text, shown = sections(tmp_path, tables_of(tmp_path, "smoke"), "")
    assert shown == []
    for word in ("NCCL", "GPUs,", "kernel", "H200", "outside", "busy"):
        assert word not in text, word
    assert squeeze("How much of the communication is hidden is not shown: on CUDA devices only.") in text
    assert squeeze("When weights arrived is not shown: on CUDA devices only.") in text
    assert squeeze("nano, 2 processes, fp32") in text


def test_what_was_not_measured_says_why(tmp_path):
    lost = Measurement(metric=WHOLE_CELL, status="oom", message="out of memory")
    tables = tables_of(tmp_path, "smoke", lambda cell: lost)
    text, shown = sections(tmp_path, tables, "")
    assert shown == []
    assert text.count(squeeze("not measured: out of memory")) == 2
    assert not fsdp_answers.tiles(fsdp_answers.answers(tables))
