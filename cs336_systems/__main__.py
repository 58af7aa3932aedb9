"""The command `cs336-systems`: subcommands by name, each with its own options.

Launch: cs336-systems fit --size 2.7B
"""

import argparse
import importlib.util
import re
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

TARGETS = {
    "report": ([], "measure what is missing on this machine, and typeset the report"),
    "plan": (["-n"], "list what a report would measure, and what fits in the GPU's memory"),
    "card": (["card"], "check this GPU in two minutes: rates, state and a verdict"),
    "verify": (["verify"], "check your own implementations against independent references"),
}
"""Subcommands that run Snakemake in the project's folder, each with its arguments; further options are Snakemake's.

Without a target Snakemake makes all, so `report writeup` makes only the writeup.
"""
MODULES = {
    "fit": ("cs336_systems.fit", "predict memory and time of a training step for every training configuration"),
    "compare": ("cs336_systems.compare", "compare the times of two result folders or files"),
    "attention": ("cs336_systems.attention", "list the attention kernels that run here, and test them"),
    "measure": ("cs336_systems.benchmarks", "measure NAME: run one experiment, and print a table"),
}
"""Subcommands that are modules."""


def main() -> None:
    """Run a subcommand; exits with status 2 and one sentence if it does not exist."""
    match sys.argv[1:]:
        case [] | ["-h" | "--help"]:
            print(usage())
        case [name, *options] if name in MODULES:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback where `head` has read enough
            run(MODULES[name][0], options)
        case [name, "-h" | "--help"] if name in TARGETS:
            arguments, about = TARGETS[name]
            print(
                f"cs336-systems {name} [OPTIONS]: {about}.\n\nRuns `{' '.join(['snakemake', *arguments])}` in this "
                "folder, which must be a clone of cs336-systems. Options are\nSnakemake's, such as --cores 8 or "
                "--config scale=quick; `snakemake --help` lists them."
            )
        case [name, *options] if name in TARGETS:
            snakemake([*TARGETS[name][0], *options])
        case [name, *_]:
            refuse(f"the command is {name!r}; allowed: {', '.join([*TARGETS, *MODULES])}")


def usage() -> str:
    """List the subcommands."""
    named = {name: about for name, (_, about) in (TARGETS | MODULES).items()}
    width = max(map(len, named))
    lines = [f"  {name:{width}}  {about}" for name, about in named.items()]
    return "\n".join(["cs336-systems COMMAND [OPTIONS]; --help after a command lists its options.", "", *lines])


def run(module: str, options: Sequence[str]) -> None:
    """Run a module as `python -m` does."""
    sys.argv = [module, *options]
    sys.path.insert(0, str(Path.cwd()))  # a user's modules, such as mine:attention
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        refuse("ended by Ctrl-C", status=128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("cs336_systems"):
            raise
        refuse(f"{error.name} is not installed; run pip install 'cs336-systems[report]'")


def snakemake(arguments: Sequence[str]) -> None:
    """Run Snakemake in this folder."""
    if not Path("Snakefile").is_file():
        refuse("this folder has no Snakefile; allowed: a clone of cs336-systems")
    if importlib.util.find_spec("snakemake") is None:
        refuse("snakemake is not installed; run pip install 'cs336-systems[report]'")
    check_configuration(arguments)
    # Instead of a hundred lines of usage.
    argparse.ArgumentParser.error = lambda _, message: refuse(f"{message}; --help lists what is allowed")  # type: ignore[method-assign, assignment]
    run("snakemake", arguments)


def check_configuration(arguments: Sequence[str]) -> None:
    """Refuse what Snakemake answers with a traceback: files that are no configuration, and words without a key."""
    from cs336_systems.yaml_file import read_mapping

    option = ""
    for argument in arguments:
        if argument.startswith("-"):
            option = argument
        elif option in ("--config", "-C") and not re.match(r"[A-Za-z_]\w*=", argument):
            refuse(f"{option} is followed by {argument!r}; allowed: KEY=VALUE; targets go before {option}")
        elif option in ("--configfile", "--configfiles"):
            try:
                read_mapping(Path(argument))
            except ValueError as error:
                refuse(str(error))


def refuse(sentence: str, status: int = 2) -> NoReturn:
    """End with a sentence."""
    print(f"cs336-systems: {sentence}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
