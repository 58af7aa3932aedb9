"""Answers to `host_costs`: launches, the time they take, and where the device waits for them."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOT_HERE, NOTHING, Answer, Captioned, count, paragraph, say
from scripts.rendering.markup import Table, significant
from scripts.views.data import measured_gpu, one, reference_context, select, size_order
from scripts.views.host import busy_shares, host_table, per_launch, same_step
from scripts.views.steps import HOST_BOUND


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    gpu = measured_gpu(tables)
    missing = NOT_HERE if gpu else "A processor launches no kernels: this needs a GPU."
    steps = select(per_launch(tables["end_to_end"]), mode="train_step")
    if not gpu:
        return {"launches": launches(steps, missing), "measured": False}
    return {
        "launches": launches(steps, missing),
        "processes": processes(same_step(tables["end_to_end"], tables["data_parallel"])),
        "graph": graph(steps, tables["data_parallel"], missing),
        "limit": HOST_BOUND,
        "measured": True,
    }


def launches(steps: DataFrame, missing: str) -> Answer:
    """How many launches a step has, and what each takes."""
    eager = select(steps, compiled=False, attention="plain")
    slow = eager[eager["host_bound"].astype(bool)]
    fast = eager[~eager["host_bound"].astype(bool)]
    context = reference_context(eager)
    named = select(eager, context=context, precision="bf16")
    largest = one(named, size=size_order(named)[-1]) if len(named) else None
    return Answer(
        asked="Launches",
        verdict=say(
            "A launch takes the host {each:µs} (median of {cells}, PyTorch eager).",
            each=slow["host"].median() if len(slow) else None,
            cells=count(len(slow), "host-bound training step"),
        ),
        more=paragraph(
            say(
                "{size}'s step in bf16 has {launches} launches, {per_block} per block.",
                size=None if largest is None else largest["label"],
                launches=None if largest is None else int(largest["launches"]),
                per_block=None
                if largest is None
                else round(largest["launches"] / parse_size(largest["size"]).num_layers),
            ),
            say("Where kernels are shorter than that, the device waits."),
        ),
        evidence=["host_costs", Captioned(launch_table(steps, context), launch_caption(context))],
        reason=say(
            "On average a kernel keeps the device busy for {short:µs} in host-bound steps and {long:µs} in "
            "device-bound ones (medians): short contexts, small models and bf16 make short kernels. Host-bound times "
            "are shown, but no verdict is formed from them.",
            short=slow["device"].median() if len(slow) else None,
            long=fast["device"].median() if len(fast) else None,
        ),
        missing=missing,
    )


def launch_caption(context: int | None) -> str:
    """The caption of the table of launches."""
    return (
        f"Launches (kernels, copies and fills) of a bf16 training step at context {context}, eager and compiled: "
        "median step, the part for which the device is busy, and step per launch; a star: host-bound."
    )


def launch_table(steps: DataFrame, context: int | None) -> Table:
    """A row per size, eager and compiled side by side."""
    rows = select(steps, context=context, precision="bf16", attention="plain")
    body = []
    for size in size_order(rows):
        line = [select(rows, size=size)["label"].iloc[0]]
        for compiled in (False, True):
            step = one(rows, size=size, compiled=compiled)
            if step is None:
                line += ["–"] * 4
                continue
            star = " *" if step["host_bound"] else ""
            line += [f"{step['launches']:.0f}", f"{significant(step['step'])}{star}"]
            line += [f"{100 * step['busy']:.0f}", f"{significant(step['host'])}"]
        body.append(line)
    header = ["launches", "step / ms", "busy / %", "µs each"]
    return Table(["", *header, *header], body, groups=[("", 1), ("eager", 4), ("compiled", 4)])


def processes(same: DataFrame) -> Answer:
    """One program in several processes, host-bound and device-bound."""
    programs = {bool(rows["host_bound"].iloc[0]): rows for _, rows in same.groupby("precision", sort=False)}
    slow, fast = programs.get(True), programs.get(False)
    several = slow is not None and len(slow) > 1
    steady = fast is not None and len(fast) > 1
    return Answer(
        asked="Between processes",
        verdict=NOTHING
        if slow is None or not several
        else say(
            "One host-bound step takes {least:ms} to {most:ms} in {processes} processes ({size}, {precision}).",
            least=slow["median"].min(),
            most=slow["median"].max(),
            processes=len(slow),
            size=slow["label"].iloc[0],
            precision=slow["precision"].iloc[0],
        ),
        more=NOTHING
        if fast is None or not steady
        else say(
            "Device-bound, in {precision}, the same step differs by {spread:percent} between {processes} processes.",
            precision=fast["precision"].iloc[0],
            spread=fast["median"].max() / fast["median"].min() - 1,
            processes=len(fast),
        ),
        reason=NOTHING
        if slow is None
        else say(
            "The figure's right part shows each timed step, at context {context} on {sequences} sequences, without "
            "communication; with several GPUs the slowest rank counts. The device works for {busy:ms} in all of them "
            "(dashed). Even within a process the host changes its speed between rounds, so only what is interleaved in "
            "one process, or device-bound, is compared.",
            context=int(slow["context"].iloc[0]),
            sequences=int(slow["batch_size"].iloc[0]),
            busy=slow["busy"].iloc[0],
        ),
        missing="No host-bound step was timed in several processes.",
    )


def graph(steps: DataFrame, data_parallel: DataFrame, missing: str) -> Answer:
    """What compiling and a CUDA graph save the host."""
    plain = select(steps, attention="plain")
    keys = ["label", "context", "precision"]
    both = select(plain, compiled=False).merge(select(plain, compiled=True), on=keys, suffixes=("", "_compiled"))
    host, shares = host_table(data_parallel), busy_shares(data_parallel)
    return Answer(
        asked="Compiled, and as a CUDA graph",
        verdict=say(
            "torch.compile leaves {share:percent} of the launches ({cells}, median); a CUDA graph needs one.",
            share=(both["launches_compiled"] / both["launches"]).median() if len(both) else None,
            cells=count(len(both), "cell"),
        ),
        more=NOTHING
        if shares is None
        else say(
            "In the data-parallel baseline ({size}, bf16) the device is busy {eager:percent} of an eager step, "
            "{replayed:percent} of one replayed from a graph.",
            size=shares[0],
            eager=shares[1],
            replayed=shares[2],
        ),
        evidence=[
            Captioned(
                host[1], f"Launches of a data-parallel step of {host[0]} and the time the host needs to issue them."
            )
        ]
        if host
        else [],
        reason=say(
            "Compiled steps of {sizes:listing} are host-bound nevertheless: the kernels left are short, too.",
            sizes=list(dict.fromkeys(both[both["host_bound_compiled"].astype(bool)]["label"])),
        ),
        missing=missing,
    )
