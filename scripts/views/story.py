"""The story on the first page: the machine, what limits a step on it, what helped, and what to do."""

from collections.abc import Mapping

import pandas
from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import NOTHING, Answer, Answers, Tables, least_and_most, say
from scripts.rendering.markup import Typst, with_unit
from scripts.views.data import measured_gpu, reference_context, select
from scripts.views.steps import steady, step_table, utilization
from scripts.views.units import GIB


def story(tables: Tables, sections: Mapping[str, Answers]) -> dict[str, Typst]:
    """Paragraphs of the first page by their titles; those without data are omitted."""
    ladder = sections.get("training_ladder", {})
    advice, conclusion = whole(ladder.get("advice")), sections.get("conclusion", {})
    paragraphs = {
        "The machine.": machine(tables),
        "What limits a step.": limits(tables["end_to_end"], sections.get("nsys_profile", {})),
        "What helped.": say(whole(ladder.get("fastest")), advice if conclusion.get("several") else NOTHING),
        "What to do.": whole(conclusion.get("advice")),
    }
    return {title: words for title, words in paragraphs.items() if words}


def whole(answer: Answer | None) -> Typst:
    """An answer in its own words, if there is one."""
    return say(Typst(answer.verdict), Typst(answer.more)) if answer and answer.verdict else NOTHING


def machine(tables: Tables) -> Typst:
    """The GPUs, their memory and links, and the versions."""
    rows = pandas.concat([table[table["gpu"] == measured_gpu(tables)] for table in tables.values()])
    if not len(rows):
        return NOTHING
    row, gpu = rows.sort_values("utc").iloc[-1], gpu_of(rows["gpu"].iloc[0])
    counts = {int(count) for count in rows["gpu_count"] if count}
    return say(
        "Up to " * (len(counts) > 1) + "{count} × {gpu} with {memory:GiB}" + " each" * (counts != {1}) + ", {cpu}."
        if row["gpu"]
        else "{cpu}" + (", {row[cores]} cores" if int(row["cores"]) else "") + ", no GPU.",
        "Data-sheet peaks per GPU: {sheet.bf16 / tera:TFLOP/s} in bf16, {sheet.fp32 / tera:TFLOP/s} in fp32, and a "
        "memory bandwidth of {sheet.bandwidth / tera:TB/s}.",
        "" if counts == {1} else "Each GPU's link carries {sheet.link / giga:GB/s} per direction.",
        "Driver {row[driver]}, CUDA {row[cuda]}, PyTorch {row[torch]}, Triton {row[triton]}."
        if row["gpu"]
        else "PyTorch {row[torch]}.",
        count=max(counts, default=None),
        gpu=row["gpu"],
        cpu=row["cpu"],
        memory=row["gpu_memory"] / GIB if row["gpu_memory"] else None,
        row=row,
        sheet=gpu,
        tera=1e12,
        giga=1e9,
    )


def limits(end_to_end: DataFrame, profile: Answers) -> Typst:
    """How busy eager training steps keep the device, by precision, the possible gain, and the share of matmuls."""
    steps = select(steady(step_table(end_to_end)), compiled=False, attention="plain", mode="train_step")
    steps = select(steps, context=reference_context(steps)).dropna(subset="busy")
    if not len(steps):
        return NOTHING
    steps["utilization"] = [utilization(step, "train_step", step["step"]) for _, step in steps.iterrows()]
    sizes, context = list(dict.fromkeys(steps["label"])), int(steps["context"].iloc[0])
    who = say(
        "eager training steps of {sizes:listing} (context {context}) keep the device", sizes=sizes, context=context
    )
    sentences = []
    for precision, rows in steps.groupby("precision", sort=False):
        late = list(rows.loc[rows["host_bound"].astype(bool), "label"])
        rest = "otherwise it waits" if len(late) == len(rows) else "with {late:listing}, the device waits"
        sentences += [
            say(
                "In {precision}, {who} busy for {busy} of the time"
                + (f"; {rest} for the host to launch kernels." if late else "."),
                "They reach {reached:span percent} of the peak rate (MFU).",
                precision=precision,
                who=who,
                late=late,
                busy=Typst(
                    " to ".join(dict.fromkeys(with_unit(100 * end, "%") for end in least_and_most(rows["busy"])))
                ),
                reached=least_and_most(rows["utilization"]),
            )
        ]
        who = say("they keep it")
    others = profile.get("others")
    return say(*sentences, Typst(others.verdict) if others else NOTHING)
