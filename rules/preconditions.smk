"""Preconditions of every run: writable folders, free disk space, and configuration files that are YAML.

Needs nothing; makes SOURCES, the named parts of the configuration, and Refused, the exception for refused input.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path

from snakemake.exceptions import CliException

FREE_MB = 50


class Refused(CliException):
    """A refused input. Snakemake prints its sentence without a traceback."""

    __traceback__ = None


def interrupted(*_):
    """End the run before the first job begins; after that, Snakemake handles Ctrl-C."""
    raise SystemExit("The run was ended by Ctrl-C, before anything was measured or made.")


def check_folder(folder):
    """Refuse a path that is not a writable folder, by creating a file in it: access rights are not enough, as in /proc."""
    try:
        if os.path.lexists(folder):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        raise Refused(f"{folder} is not a folder that this user can write; allowed: a writable folder, or none")


if workflow.is_main_process and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupted)
if workflow.output_settings.dryrun:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback when `head` closes the pipe
if Path.cwd() != Path(workflow.basedir):
    raise Refused(f"snakemake runs in {Path.cwd()}; allowed: the project's folder, {workflow.basedir}")
if (cores := workflow.resource_settings.cores) is not None and cores < 1:
    raise Refused(f"--cores is {cores}; allowed: a number from 1, or all")  # Snakemake would wait forever
for folder in (Path.cwd(), ".snakemake", "results"):
    check_folder(folder)
if (free := shutil.disk_usage(".").free / 1e6) < FREE_MB:
    raise Refused(f"the disk of {Path.cwd()} has {free:.0f} MB free; allowed: at least {FREE_MB} MB")

from cs336_systems.yaml_file import read_mapping

try:
    SOURCES = [
        (str(file), read_mapping(file))
        for path in ["config.yaml", *workflow.configfiles]
        for file in [Path(path).relative_to(Path.cwd()) if Path.cwd() in Path(path).parents else Path(path)]
    ]
except ValueError as error:
    raise Refused(str(error))
SOURCES.append(("--config", workflow.config_settings.config))
