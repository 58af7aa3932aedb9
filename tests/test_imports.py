"""What must start in a second imports no torch."""

import subprocess
import sys

import pytest

from tests.samples import ROOT

IMPORT_ALL = """
import importlib, pkgutil, sys

def import_all(name):
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."):
        import_all(found.name)

import_all(sys.argv[1])
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "name", ["scripts", "cs336_systems.plan", "cs336_systems.experiments", "cs336_systems.accounting"]
)
def test_torch_is_never_imported(name):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name} imports torch, or fails: {done.stderr}"
