"""Record the traces of this folder on a GPU, into this folder or another: python -m tests.traces [FOLDER]."""

import sys
from pathlib import Path

import torch

from tests.traces import FOLDER, MODELS, make_step, record

target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
for name in MODELS:
    record(make_step(name, torch.device("cuda")), target / f"{name}.json.gz", torch.device("cuda"))
    print(target / f"{name}.json.gz", (target / f"{name}.json.gz").stat().st_size, "bytes")
