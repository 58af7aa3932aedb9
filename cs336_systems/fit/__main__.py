"""Predict which training configurations fit, with memory and time of a step, without measuring anything.

Launch: python -m cs336_systems.fit --model llama-3-8b --context 8192 --gpus 8
"""

import importlib.util
import json
import sys
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, make_dataclass, replace
from typing import Any

import tyro

from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.fit.answer import Answer
from cs336_systems.fit.gpus import memory_of
from cs336_systems.fit.parameters import Question, refuse_contradictions
from cs336_systems.fit.presets import PRESETS
from cs336_systems.fit.verdict import predict
from cs336_systems.measure.gpus import listed
from cs336_systems.options import options_of, parse
from cs336_systems.sizes import parse_size


@dataclass(frozen=True, kw_only=True)
class Command(Question):
    """A question, and how the answer is printed."""

    json: bool = False
    """Print JSON for programs, in bytes and seconds, instead of a table."""


def main(arguments: Sequence[str]) -> None:
    """Parse a command line and print the answer; exits with status 2 and one sentence on bad input."""
    options: type = make_dataclass("Command", options_of(Command), kw_only=True)
    command = parse(options, "cs336-systems fit", arguments, Question.__doc__, (tyro.conf.FlagCreatePairsOff,))
    values = asdict(command)
    try:
        as_json = values.pop("json")
        question: Question = make_cell(typing.cast(Any, Question), values)
        refuse_contradictions(question)
        answer = closed_form(question) if question.model == EndToEnd.model else traced(question)
    except ValueError as error:
        print(f"cs336-systems fit: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(answer.as_json(asdict(question)), indent=1) if as_json else answer)


def closed_form(question: Question) -> Answer:
    """The answer on the handout's model."""
    return Answer(
        title=question.title,
        gpu=question.gpu,
        gpus=question.gpus,
        capacity=memory_of(listed(question.gpu)),
        batch=f"{question.batch_size} x {question.context} tokens",
        tokens=question.batch_size * question.context,
        ways=tuple(predict(question)),
        price=question.price,
        elsewhere=lambda gpus: tuple(predict(replace(question, gpus=gpus))),
    )


def traced(question: Question) -> Answer:
    """The answer on a published model, or on the user's class.

    Raises:
        ValueError: PyTorch is not installed, or the class cannot be used, in one sentence.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError(f"model {question.model!r} is traced by PyTorch, which is not installed")
    import torch

    from cs336_systems.fit.decoder import Decoder
    from cs336_systems.fit.traced import fit
    from cs336_systems.model import build_model
    from cs336_systems.model_check import check_model

    def build() -> torch.nn.Module:
        if question.model in PRESETS:
            return Decoder(PRESETS[question.model])
        return build_model(
            question.model,
            parse_size(question.shape_name),
            vocab_size=question.vocabulary,
            context_length=question.context,
            device=torch.device("meta"),
        )

    if question.model not in PRESETS:
        check_model(question.model)
    return fit(
        build,
        (question.batch_size, question.context),
        title=question.title,
        gpu=question.gpu,
        gpus=question.gpus,
        precision=question.precision,
        price=question.price,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
