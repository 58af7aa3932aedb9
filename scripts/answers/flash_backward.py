"""Answers to `flash_backward`: the backward pass as kernels and as compiled PyTorch."""

from pandas import DataFrame

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, count, least_and_most, say
from scripts.rendering.grid import grid
from scripts.rendering.markup import Table
from scripts.views.attention_calls import ONE_HEAD, availability
from scripts.views.attention_times import backward_pairs, call_table
from scripts.views.data import first, flat, measured_gpu, select


def answers(tables: Tables) -> Found:
    """The section's answer."""
    table = tables["flash"]
    found = availability(table)
    pairs = backward_pairs(select(call_table(table), **ONE_HEAD))
    why = "its compiled backward pass needs a GPU" if found["measured"] else found["why"]
    waits = pairs["waits"].astype(bool)
    told = pairs[~waits]
    longest = select(told, sequence=told["sequence"].max())
    facts = Facts(ratio=least_and_most(told["gain"]), row=first(longest), long=least_and_most(longest["gain"]))
    return {
        "hopper": measured_gpu(tables) != "",
        "ways": Answer(
            asked="Kernels against compiled PyTorch",
            verdict=facts.say(
                "Compiled PyTorch takes {ratio:span times} the time of our kernels ({cells}).",
                cells=count(len(told), "device-bound cell"),
            )
            or say(
                "Whether kernels or compiled PyTorch are faster cannot be decided: all cells are host-bound."
                if len(pairs)
                else ""
            ),
            more=facts.say("At {row[sequence]} tokens it takes {long:span times}.") if len(told) > len(longest) else "",
            evidence=Captioned(
                ratio_table(told),
                "Time of the backward pass in compiled PyTorch divided by our kernels' time, medians; causal, one "
                "head. –: one of them is host-bound or was not measured.",
            ),
            missing=f"Not measured: {why}.",
        ),
    }


def ratio_table(told: DataFrame) -> Table:
    """One line per length, a column per precision and head dimension."""
    gains = flat(told.pivot(index="sequence", columns=["precision", "d"], values="gain"))
    columns = {
        str(precision): {f"d = {d}": f"{{{precision} {d}:.1f}}×" for d in sorted(set(rows["d"]))}
        for precision, rows in told.groupby("precision")
    }
    return grid(gains.reset_index(), {"sequence": "{sequence}", **columns}, text_columns=0)
