"""Answer to `what_fits`: how well closed forms predict a step's memory and time."""

from collections.abc import Iterator
from typing import Any

from pandas import DataFrame

from cs336_systems.fit.recorded import ELSEWHERE, MEMORY_WITHIN, TIME_WITHIN, recorded
from cs336_systems.fit.verdict import recorded_on
from scripts.rendering.answer import Answer, Captioned, Found, Tables, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.data import first, measured_gpu
from scripts.views.what_fits import HELD_BACK, judged, predictions, summary

REBUILT = "PyTorch's DDP"
WITHIN = {"memory": MEMORY_WITHIN, "time": TIME_WITHIN}
BY_EXPERIMENT: Columns = {
    "": "{experiment}",
    **{
        what: {
            "steps": f"{{{what} cells:.0f}}",
            "median / %": f"{{{what} median:.1f}}",
            "most / %": f"{{{what} most:.1f}}",
            f"within {100 * limit:.0f} %": f"{{{what} within:.0f}}",
        }
        for what, limit in WITHIN.items()
    },
}
EVERY: Columns = {
    "": {"": "{cell}", "kind": "{kind}"},
    "memory / MiB": {"measured": "{memory:.0f}", "predicted": "{memory_predicted:.0f}", "%": "{memory_percent:+.1f}"},
    "time / ms": {
        "measured": "{time:.2f}{host_bound:star}",
        "predicted": "{time_predicted:.2f}",
        "%": "{time_percent:+.1f}",
    },
}


def answers(tables: Tables) -> Found:
    """The section's answer."""
    found = predictions(tables)
    return {"error": how_well(found, measured_gpu(tables))}


def how_well(found: DataFrame, gpu: str) -> Answer:
    """The errors over all measured steps."""
    table = DataFrame(by_experiment(found))
    whole = first(table[table["experiment"] == "all"]) if len(table) else None
    return Answer(
        asked="Memory and time without measuring",
        verdict=say(
            "Closed forms predict {row[memory within]:whole} of {row[memory cells]:whole} peaks within "
            "{memory:percent}, {row[time within]:whole} of {row[time cells]:whole} step times within {time:percent}.",
            row=whole,
            **WITHIN,
        ),
        more=say(
            "Half of the peaks are off by at most {peaks:percent}, and half of the times by {times:percent}.",
            peaks=None if whole is None else whole["memory median"] / 100,
            times=None if whole is None else whole["time median"] / 100,
        ),
        evidence=Captioned(
            grid(table, BY_EXPERIMENT),
            "Errors of the predictions by experiment: of the peak memory of every measured step, and of the time of "
            "the device-bound ones.",
        ),
        reason=reason(found, gpu),
        details=Captioned(
            grid(
                found.assign(
                    memory_percent=100 * found["memory_error"],
                    time_percent=100 * found["time_error"],
                    host_bound=~found["device_bound"],
                ),
                EVERY,
                text_columns=2,
            ),
            "Every measured step against its prediction. A star: host-bound; its time is for how long the device works "
            "in the step.",
            long=True,
        ),
        missing="Not predicted: memory is counted, and the device's time known, on GPUs only.",
    )


def reason(found: DataFrame, gpu: str) -> Typst:
    """How the predictions come about, and which are off."""
    if not len(found):
        return Typst("")
    known = recorded()
    kinds = judged(found, "memory").groupby("kind")["memory_error"].agg(lambda errors: float(errors.abs().max()))
    times = judged(found, "time")
    held_out = [error.most for error in known.held_out.values()]
    return say(
        "`python -m cs336_systems.fit` adds up what a step keeps, its temporaries, cuBLAS's workspaces and the "
        "allocator's rounding. A step's time is its work at the data sheet's rates, each kind of work slower by a "
        "factor that was fitted to the steps recorded on {gpu}.",
        say(
            "With each model size left out of the fit in turn, times are off by up to {most:percent}.",
            most=max(held_out),
        )
        if recorded_on(gpu)
        else say("On another GPU times may be off by {most:percent}.", most=ELSEWHERE),
        "The times of `kernel_profile` were not fitted: they are off by up to {most:percent}.",
        say(
            "PyTorch's data parallelism makes its buckets anew in the second step, when the first ones may or may not "
            "be in memory: each measured peak is within {most:percent} of one of the two possible ones. Other peaks "
            "are off by {others:percent} at most.",
            most=kinds.get(REBUILT),
            others=kinds.drop(REBUILT, errors="ignore").max(),
        ),
        gpu=known.gpu,
        most=times[times["experiment"] == HELD_BACK]["time_error"].abs().max(),
    )


def by_experiment(found: DataFrame) -> Iterator[dict[str, Any]]:
    """The errors of each experiment's steps, in percent, and of all."""
    for name in [*dict.fromkeys(found["experiment"]), "all"]:
        row: dict[str, Any] = {"experiment": name}
        for what, limit in WITHIN.items():
            rows = judged(found if name == "all" else found[found["experiment"] == name], what)
            if not len(rows):
                continue
            errors = summary(rows[f"{what}_error"])
            row |= {f"{what} {key}": value * (1 if key == "cells" else 100) for key, value in errors.items()}
            row[f"{what} within"] = int((rows[f"{what}_error"].abs() <= limit).sum())
        if len(row) > 1:
            yield row
