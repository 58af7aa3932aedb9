"""Answers to `flash_backward`: the backward pass as kernels and as compiled PyTorch."""

from scripts.rendering.answer import Answer, Answers, Facts, Tables, count, least_and_most, say
from scripts.views.attention_calls import ONE_HEAD, OURS, availability
from scripts.views.attention_times import SHAPE, call_table
from scripts.views.data import PRECISIONS, first, measured_gpu, select


def answers(tables: Tables) -> Answers:
    """The section's answer."""
    why = availability(tables["flash"]) or "the kernels need a GPU"
    cells = select(call_table(tables["flash"]), **ONE_HEAD)
    kernels, compiled = (select(cells, implementation=name) for name in (OURS, "triton_compiled_backward"))
    pairs = kernels.merge(compiled, on=SHAPE, suffixes=("", "_compiled"))
    decided = pairs[~(pairs["waits"] | pairs["waits_compiled"]).astype(bool)]
    longest = decided[decided["sequence"] == decided["sequence"].max()]
    ratio, ratio_of_longest = (rows["backward_compiled"] / rows["backward"] for rows in (decided, longest))
    precisions = [name for name in reversed(PRECISIONS) if name in set(decided["precision"])]
    facts = Facts(
        ratio=least_and_most(ratio),
        row=first(longest),
        long=least_and_most(ratio_of_longest),
        dimensions=list(map(str, sorted(set(longest["d"])))),
        there=[name for name in precisions if name in set(longest["precision"])],
    )
    return {
        "hopper": measured_gpu(tables) != "",
        "ways": Answer(
            asked="Kernels against compiled PyTorch",
            verdict=facts.say(
                "Backward takes {ratio:span times} as long in compiled PyTorch as in our kernels ({where}).",
                where=facts.say("{row[sequence]} tokens, d = {row[d]}, {row[precision]}")
                if len(decided) == 1
                else say("{cells} in {precisions:listing}", cells=count(len(decided), "cell"), precisions=precisions),
            )
            or say(
                "Our kernels and compiled PyTorch cannot be compared: all cells are host-bound." if len(pairs) else ""
            ),
            more=facts.say(
                "At {row[sequence]} tokens the ratio is {long:span times} (d = {dimensions:listing}, {there:listing})."
            )
            if len(decided) > len(longest)
            else "",
            reason="Times are medians of causal calls with one head; host-bound calls are left out."
            if len(decided)
            else "",
            missing=f"Not measured: {why}.",
        ),
    }
