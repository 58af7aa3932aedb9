"""Answers to `what_fits`: what trains within a GPU's memory by closed forms, and how accurate they are."""

from pandas import DataFrame

from cs336_systems.fit.recorded import ELSEWHERE, MEMORY_WITHIN, TIME_WITHIN, recorded
from cs336_systems.fit.verdict import recorded_on
from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Typst, measured, with_unit
from scripts.views.data import last, measured_gpu
from scripts.views.longest_contexts import BATCH, CONTEXTS, WAYS, longest_contexts
from scripts.views.units import GIB
from scripts.views.what_fits import HELD_BACK, judged, predictions

REBUILT = "PyTorch's DDP"
LONGEST: Columns = {
    "": "{label}",
    **{
        way: {
            "context": f"{{{way} context:.0f}}",
            "GiB": f"{{{way} memory:GiB}}",
            "step / s": f"{{{way} seconds:sig}}",
        }
        for way in WAYS
    },
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    found, gpu = predictions(tables), measured_gpu(tables)
    known = recorded()
    memory = next((size for table in tables.values() for size in table["gpu_memory"] if size), known.memory)
    return {"fits": what_fits(gpu or known.gpu, memory), "error": how_well(found, gpu)}


def what_fits(gpu: str, capacity: float) -> Answer:
    """The longest step of each size in a GPU's memory."""
    table = longest_contexts(gpu, capacity)
    trained = table[[f"{way} context" for way in WAYS]].notna().any(axis=1)
    row = last(table[trained])
    steps = [] if row is None else [(way, row[f"{way} context"], row[f"{way} seconds"]) for way in WAYS]
    facts = Facts(
        gpu=gpu.removeprefix("NVIDIA "),
        row=row,
        ways=[
            say("{context:whole} ({way})", context=context, way=way) for way, context, _ in steps if measured(context)
        ],
        seconds=[with_unit(seconds, "s") for *_, seconds in steps if measured(seconds)],
    )
    return Answer(
        asked="What fits",
        verdict=facts.say("One {gpu} trains {row[label]} up to context {ways:listing}."),
        more=facts.say(
            "That is with {batch} sequences in bf16, by closed form; such steps take {seconds:listing}.",
            "{larger:listing} does not fit.",
            batch=BATCH,
            larger=list(table["label"][~trained])[:1],
        ),
        evidence=Captioned(
            grid(table, LONGEST),
            say(
                "The longest context (a power of two up to {most}) at which a step of {batch} sequences in bf16 "
                "autocast fits into {capacity:GiB}: with plain attention, with FlashAttention, and with "
                "FlashAttention and checkpointed blocks; the memory needed, including CUDA's context, and the "
                "step's time.",
                most=CONTEXTS[-1],
                batch=BATCH,
                capacity=capacity / GIB,
            ),
        ),
        missing=f"No step of {BATCH} sequences fits into the GPU's memory.",
    )


def how_well(found: DataFrame, gpu: str) -> Answer:
    """The errors over all measured steps."""
    peaks, times = (judged(found, what)[f"{what}_error"].abs() for what in ("memory", "time"))
    fit = judged(found[found["experiment"] != HELD_BACK], "time")["time_error"].abs()
    fitted = recorded_on(gpu)
    facts = Facts(
        peaks=len(peaks) or None,
        close_peaks=int((peaks <= MEMORY_WITHIN).sum()),
        memory=MEMORY_WITHIN,
        times=len(times),
        close_times=int((times <= TIME_WITHIN).sum()),
        time=TIME_WITHIN,
        most=max(error.most for error in recorded().held_out.values()),
    )
    return Answer(
        asked="How accurate the predictions are",
        verdict=facts.say(
            "Closed forms predict {close_peaks} of {peaks} peaks within {memory:percent}"
            + (
                ", and step times of other model sizes within {most:percent}."
                if fitted
                else ", {close_times} of {times} step times within {time:percent}."
            )
        ),
        more=say(
            "Half of the peaks are off by at most {half:percent}.",
            "The fit meets its own {cells} step times within {fit:percent}." if fitted else "",
            half=peaks.median(),
            cells=len(fit),
            fit=fit.max(),
        ),
        reason=reason(found, gpu),
        missing="Not compared: memory and the device's time are measured on GPUs only.",
    )


def reason(found: DataFrame, gpu: str) -> Typst:
    """How the predictions are made, and which are off."""
    if not len(found):
        return Typst("")
    known = recorded()
    kinds = judged(found, "memory").groupby("kind")["memory_error"].agg(lambda errors: float(errors.abs().max()))
    times = judged(found, "time")
    return say(
        "`python -m cs336_systems.fit` adds up the tensors that a step keeps, its temporaries, cuBLAS's workspaces "
        "and the allocator's rounding. A step's time is its work at the data sheet's rates; each kind of work is "
        "slowed by a factor fitted to the steps recorded on {gpu}.",
        "For step times of other model sizes, each size is left out of the fit in turn."
        if recorded_on(gpu)
        else say("On another GPU times may be off by {most:percent}.", most=ELSEWHERE),
        "The times of `kernel_profile` were not fitted: they are off by up to {most:percent}.",
        say(
            "PyTorch's data parallelism rebuilds its buckets in the second step, when the first ones may still be "
            "in memory: each measured peak is within {most:percent} of one of the two possible ones. Other peaks "
            "are off by at most {others:percent}.",
            most=kinds.get(REBUILT),
            others=kinds.drop(REBUILT, errors="ignore").max(),
        ),
        gpu=known.gpu,
        most=times[times["experiment"] == HELD_BACK]["time_error"].abs().max(),
    )
