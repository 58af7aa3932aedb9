"""Tell what fits: memory and time of a training step by every way to train, without measuring anything.

Launch: python -m cs336_systems.fit --size 2.7B --context 2048 --gpus 2
"""

import dataclasses
import json
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any

import pandas
import tyro

from cs336_systems.experiments.base import field_docs, make_cell
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.fit.gpus import memory_of
from cs336_systems.fit.parameters import Question
from cs336_systems.fit.recorded import ELSEWHERE, Error
from cs336_systems.fit.verdict import Prediction, as_json, predict, recorded_on
from cs336_systems.sizes import parse_size, size_name

GB = 1e9
COLUMNS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer",
    "activations": "activations",
    "weight_copies": "copies",
    "temporaries": "temporary",
}
"""The columns of the table; the rest is one."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """How the answer is printed."""

    json: bool = False
    """Print JSON for programs, in bytes and seconds, instead of a table."""


def main(arguments: Sequence[str]) -> None:
    """Parse a command line and print the answer; exits with status 2 and one sentence on bad input."""
    docs = field_docs(Question) | field_docs(Output)
    hints = typing.get_type_hints(Question) | typing.get_type_hints(Output)
    options = [
        (each.name, Annotated[hints[each.name], tyro.conf.arg(help=docs[each.name])], field(default=each.default))
        for each in (*fields(Question), *fields(Output))
    ]
    command = make_dataclass("Command", options, kw_only=True)
    parsed: Any = tyro.cli(
        command,
        prog="python -m cs336_systems.fit",
        args=list(arguments),
        description=Question.__doc__,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    values = dataclasses.asdict(parsed)
    try:
        as_text = not values.pop("json")
        question: Question = make_cell(typing.cast(Any, Question), values)
        found = list(predict(question, counted_weights(question)))
    except ValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        sys.exit(2)
    if as_text:
        print(as_table(question, found))
    else:
        print(json.dumps(as_json(question, found), indent=1))


def counted_weights(question: Question) -> int:
    """The number of weights of a model class other than TransformerLM, of which tied ones count once; 0 of that."""
    if question.model == EndToEnd.model:
        return 0
    import torch

    from cs336_systems.model import build_model

    try:
        model = build_model(
            question.model,
            parse_size(question.size),
            vocab_size=question.vocab_size,
            context_length=question.context,
            device=torch.device("meta"),
        )
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"model {question.model!r} cannot be built: {error}") from None
    return sum(parameter.numel() for parameter in model.parameters())


def as_table(question: Question, found: Sequence[Prediction]) -> str:
    """The answer as text."""
    capacity, here = memory_of(question.gpu), recorded_on(question.gpu)
    first = (
        f"{size_name(question.size)} on {question.gpus} x {question.gpu} ({capacity / GB:.1f} GB), "
        f"{question.batch_size} x {question.context} tokens on each: GB by use at the peak of a step, and ms per step"
    )
    lines = [_line(each, here) for each in found]
    table = pandas.DataFrame(lines).to_string(index=False)
    source = (
        "±: largest error of the same closed forms over so many recorded steps of this kind on this GPU;\n"
        "tight: cannot be told within it and the allocator's gaps; ≥: the host is likely slower than the device."
        if here
        else f"Nothing is recorded on this GPU: memory is as off as on an H200, time by up to {ELSEWHERE:.0%} or more."
    )
    return f"{first}\n\n{table}\n\n{source}"


def _line(each: Prediction, here: bool) -> dict[str, str]:
    rest = each.memory.total - sum(getattr(each.memory, name) for name in COLUMNS) + each.outside
    return {
        "": each.way,
        "fits": {"fits": "yes", "tight": "tight", "does not fit": "no"}[each.outcome],
        "GB": f"{(each.memory.total + each.outside) / GB:.1f}",
        "± ": _within(each.memory_error),
        **{title: f"{getattr(each.memory, name) / GB:.1f}" for name, title in COLUMNS.items()},
        "rest": f"{rest / GB:.1f}",
        "ms": f"{'≥ ' if each.host_bound else ''}{1e3 * each.seconds:.3g}",
        "±": _within(each.time_error) if here else f"{ELSEWHERE:.0%}",
    }


def _within(error: Error | None) -> str:
    return "–" if error is None else f"{error.most:.1%} of {error.cells}"


if __name__ == "__main__":
    main(sys.argv[1:])
