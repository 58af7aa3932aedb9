"""What must hold before anything is read or run: the folder, room on its disk, and configuration files that are YAML.

Needs nothing; makes SOURCES, what the configuration is merged from, by name.
"""

import shutil
from pathlib import Path

from snakemake.exceptions import WorkflowError

FREE_MB = 50

if Path.cwd() != Path(workflow.basedir):
    raise WorkflowError(f"snakemake runs in {Path.cwd()}; allowed: the project's folder, {workflow.basedir}")
if (free := shutil.disk_usage(".").free / 1e6) < FREE_MB:
    raise WorkflowError(f"the disk of {Path.cwd()} has {free:.0f} MB free; allowed: at least {FREE_MB} MB")

from cs336_systems.yaml_file import read_mapping

try:
    SOURCES = [
        (str(file), read_mapping(file))
        for path in ["config.yaml", *workflow.configfiles]
        for file in [Path(path).relative_to(Path.cwd()) if Path.cwd() in Path(path).parents else Path(path)]
    ]
except ValueError as error:
    raise WorkflowError(str(error))
SOURCES.append(("--config", workflow.config_settings.config))
