"""Check that a model class can replace TransformerLM, before anything is measured with it.

Launch: python -m cs336_systems.model_check package.module:Class [flash]

It exits with status 2 and one sentence if the class cannot.
"""

import inspect
import sys

from cs336_systems.implementations import LOADED
from cs336_systems.model import load_model_class

ARGUMENTS = ("vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff", "rope_theta")
"""Keyword arguments with which every model is called."""


def check_model(model: str, attention: str = "plain") -> None:
    """Check that a model class can be loaded, and accepts the arguments of TransformerLM.

    `attention` is passed as an argument only if it is not plain.

    Raises:
        ValueError: it cannot, or does not, in one sentence.
    """
    try:
        model_class = load_model_class(model)
    except ValueError:
        raise
    except BaseException as error:  # whatever a user's module raises
        reason = f"{type(error).__name__}: {error}".removesuffix(": ").splitlines()[0][:300]
        raise ValueError(f"model {model!r} cannot be loaded: {reason}") from None
    if not callable(model_class):
        raise ValueError(f"model is {model!r}, which is of type {type(model_class).__name__}; allowed: a model class")
    try:
        parameters = inspect.signature(model_class).parameters.values()
        inspect.signature(model_class).bind(**dict.fromkeys(ARGUMENTS))
    except (TypeError, ValueError) as error:  # ValueError of a built-in class
        allowed = ", ".join(ARGUMENTS)
        raise ValueError(f"model {model!r} cannot be called: {error}; allowed: a class that takes {allowed}") from None
    if attention != "plain" and not any(
        parameter.name == "attention" or parameter.kind == parameter.VAR_KEYWORD for parameter in parameters
    ):
        raise ValueError(f"attention is {attention!r}, which model {model!r} does not accept; allowed: plain")


if __name__ == "__main__":
    try:
        check_model(*sys.argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(LOADED, end="")
