"""Answers to `host_costs`: launches, their time, and where the device waits for them."""

from pandas import DataFrame

from cs336_systems.compare.speed import HOST_BOUND
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import (
    NOT_HERE,
    Answer,
    Captioned,
    Facts,
    Found,
    Tables,
    count,
    least_and_most,
    median_of,
    say,
)
from scripts.rendering.grid import Columns, grid
from scripts.views.data import last, measured_gpu, reference_context, select, size_order
from scripts.views.host import busy_shares, host_table, per_launch

LAUNCHES: Columns = {
    "": "{label}",
    **{
        way: {
            "launches": f"{{launches {way}:.0f}}",
            "step / ms": f"{{step {way}:sig}}{{host_bound {way}:star}}",
            "busy / %": f"{{busy {way}:share}}",
            "µs each": f"{{host {way}:sig}}",
        }
        for way in ("eager", "compiled")
    },
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    gpu = measured_gpu(tables)
    missing = NOT_HERE if gpu else "Not measured: kernel launches need a GPU."
    steps = select(per_launch(tables["end_to_end"]), mode="train_step", attention="plain")
    if not gpu:
        return {"launches": launches(steps, missing), "measured": False}
    return {
        "launches": launches(steps, missing),
        "graph": graph(steps, tables["data_parallel"], missing),
        "limit": HOST_BOUND,
        "measured": True,
    }


def launches(steps: DataFrame, missing: str) -> Answer:
    """The number of launches in a step, and the time of each."""
    eager = select(steps, compiled=False)
    bound = eager["host_bound"].astype(bool)
    slow, fast = eager[bound], eager[~bound]
    context = reference_context(eager)
    shown = select(steps, context=context, precision="bf16")
    largest = last(select(shown, compiled=False))
    facts = Facts(each=slow["host"].median(), row=largest, short=slow["device"].median(), long=fast["device"].median())
    return Answer(
        asked="Launches",
        verdict=facts.say(
            "A launch takes {each:µs} on the host ({cells}, PyTorch eager).",
            cells=median_of(len(slow), "host-bound training step"),
        ),
        more=facts.say(
            "{row[label]}'s step in bf16 has {row[launches]:whole} launches, {per_block:whole} per block.",
            "The device waits after each kernel that is shorter than a launch.",
            per_block=None if largest is None else largest["launches"] / parse_size(largest["size"]).num_layers,
        ),
        evidence=[
            "host_costs",
            Captioned(
                grid(both_ways(shown), LAUNCHES),
                f"Launches (kernels, copies and fills) of a bf16 training step at context {context}: median step, the "
                "part for which the device is busy, and step per launch.",
                legend={"*": "*: host-bound"},
            ),
        ],
        reason=facts.say(
            "On average a kernel runs for {short:µs} in host-bound steps and {long:µs} in device-bound ones "
            "(medians): short contexts, small models and bf16 make kernels short. Host-bound times are shown, but "
            "get no verdict."
        ),
        missing=missing,
    )


def both_ways(steps: DataFrame) -> DataFrame:
    """One row per size, the columns of its eager and its compiled step, followed by their names."""
    eager, compiled = (select(steps, compiled=way) for way in (False, True))
    wide = eager.merge(compiled, on=["size", "label"], how="outer", suffixes=(" eager", " compiled"))
    return wide.set_index("size").loc[size_order(wide)]


def graph(steps: DataFrame, data_parallel: DataFrame, missing: str) -> Answer:
    """The launches saved by compiling and by a CUDA graph."""
    keys = ["label", "context", "precision"]
    both = select(steps, compiled=False).merge(select(steps, compiled=True), on=keys, suffixes=("", "_compiled"))
    size, costs = host_table(data_parallel)
    return Answer(
        asked="Compiled, and as a CUDA graph",
        verdict=say(
            "torch.compile leaves {share:span percent} of the launches ({cells}); a CUDA graph needs only one.",
            share=least_and_most(both["launches_compiled"] / both["launches"]),
            cells=count(len(both), "cell"),
        ),
        more=say(
            "In the data-parallel baseline ({shares[0]}, bf16) the device is busy for {shares[1]:span percent} of an "
            "eager step and {shares[2]:span percent} of a step replayed from a graph.",
            shares=busy_shares(data_parallel),
        ),
        evidence=Captioned(costs, f"Launches in a data-parallel step of {size}, and the host time to issue them."),
        reason=say(
            "Compiled steps of {sizes:listing} are still host-bound: the remaining kernels are short too.",
            sizes=list(dict.fromkeys(both[both["host_bound_compiled"].astype(bool)]["label"])),
        ),
        missing=missing,
    )
