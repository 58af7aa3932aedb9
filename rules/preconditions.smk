"""What must hold before anything is read or run: the folder, room on its disk, and configuration files that are YAML.

Needs and makes nothing.
"""

import shutil
from pathlib import Path

from snakemake.exceptions import WorkflowError

FREE_MB = 50

if Path.cwd() != Path(workflow.basedir):
    raise WorkflowError(f"snakemake runs in {Path.cwd()}; allowed: the project's folder, {workflow.basedir}")
if (free := shutil.disk_usage(".").free / 1e6) < FREE_MB:
    raise WorkflowError(f"the disk of {Path.cwd()} has {free:.0f} MB free; allowed: at least {FREE_MB} MB")

from cs336_systems.yaml_file import read_yaml

try:
    for file in ["config.yaml", *workflow.configfiles]:
        read_yaml(Path(file))
except ValueError as error:
    raise WorkflowError(str(error))
