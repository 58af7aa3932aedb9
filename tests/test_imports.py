"""Imports: no torch in modules that must start in a second, and only installed packages in the library."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import packages_distributions

import pytest
import yaml

import cs336_systems
from cs336_systems import parallel
from tests.samples import ROOT

IMPORT_ALL = """
import importlib, pkgutil, sys

def import_all(name):
    module = importlib.import_module(name)
    for each in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."):
        if each.name != "scripts.verify":  # which compares tensors
            import_all(each.name)

for name in sys.argv[1:]:
    import_all(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
    if "matplotlib" in sys.modules and name != "scripts":
        sys.exit(f"{name} imports matplotlib, which only figures need")
"""
QUICK = ("experiments", "accounting", "plan", "run.forecast")


def test_torch_is_never_imported():
    names = [*(f"cs336_systems.{name}" for name in QUICK), "scripts.answers", "scripts.checks", "scripts"]
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_those_of_the_modules_that_define_them():
    for name in parallel.__all__:
        module = import_module(f"cs336_systems.parallel.{parallel.MODULE_OF[name]}")
        assert getattr(parallel, name) is getattr(module, name)
        assert getattr(parallel, name).__module__ == module.__name__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        parallel.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("house", "rooms"),
    [("cs336_systems", {"accounting", "experiments", "measure", "record"}), ("scripts", {"checks", "stages", "views"})],
)
def test_rooms_import_downwards_only(house, rooms):
    folder = ROOT / house
    arrows = {}
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{house}."):
                arrows.setdefault(room, set()).add(node.module.split(".")[1])
    order = TopologicalSorter({room: below - {room} for room, below in arrows.items()})
    assert rooms <= set(order.static_order())  # CycleError names a circle


def test_the_library_needs_only_what_it_is_installed_with():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["report"]
    packages = {re.match(r"[\w-]+", each)[0].lower() for each in extra}
    modules = [name for name, owners in packages_distributions().items() if packages & {x.lower() for x in owners}]
    assert {"tyro", "pandas", "psutil", "snakemake"} <= set(modules)
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({sorted(modules)}))\n"
        "import cs336_systems.attention\n"
        "assert 'torch._dynamo' not in sys.modules, 'attention imports the compiler, which takes a second'\n"
        "import cs336_systems.attention.__main__\nfrom cs336_systems.parallel import *\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_version_is_said_once():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == cs336_systems.__version__
