"""The digest of an experiment's code: what changes it, and what does not."""

import os
import sys

import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.source import source_digest

MODULE = '''
"""What it is for."""
from kitchen import oven
from kitchen.tools.knife import cut

ROUNDS = 3


def cook(meal=None):
    """How it is done."""
    for _ in range(ROUNDS):
        oven.heat(cut(meal))
    return meal
'''


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    """A package whose module `cook` imports `oven` and `tools.knife`, and not `unrelated`; a function that edits it."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "kitchen"
    (folder / "tools").mkdir(parents=True)
    clock = iter(range(1, 1000))

    def edit(name, text):
        (folder / name).write_text(text, encoding="utf-8")
        os.utime(folder / name, (next(clock),) * 2)  # file systems' clocks may not tell two edits apart

    for name in ("__init__.py", "tools/__init__.py"):
        edit(name, "")
    edit("cook.py", MODULE)
    edit("oven.py", "from kitchen import fuel\n\ndef heat(x):\n    return fuel.burn(x)\n")
    edit("fuel.py", "def burn(x):\n    return x\n")
    edit("tools/knife.py", "def cut(x):\n    return x\n")
    edit("unrelated.py", "x = 1\n")
    return edit


@pytest.mark.parametrize(
    "text",
    [
        MODULE.replace("ROUNDS = 3", "ROUNDS = 3  # thrice"),
        MODULE.replace("How it is done.", "How it is really done."),
        MODULE.replace('    """How it is done."""\n', ""),
        MODULE.replace("oven.heat(cut(meal))", "oven.heat(\n            (cut(meal)),\n        )"),
        MODULE.replace("ROUNDS = 3", 'ROUNDS = 3\n"""How often."""'),
        MODULE.replace("\n\n", "\n\n\n\n"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(kitchen, text):
    before = source_digest("kitchen.cook")
    kitchen("cook.py", text)
    assert text != MODULE
    assert source_digest("kitchen.cook") == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cook.py", MODULE.replace("ROUNDS = 3", "ROUNDS = 4")),
        ("cook.py", MODULE.replace("ROUNDS = 3", "ROUNDS = '3'")),
        ("cook.py", MODULE.replace("ROUNDS = 3", "ROUNDS = 3.0")),
        ("cook.py", MODULE.replace("meal=None", "meal=0")),
        ("cook.py", MODULE.replace("meal=None", "meal")),
        ("cook.py", MODULE.replace("return meal", "return")),
        ("oven.py", "from kitchen import fuel\n\ndef heat(x):\n    return fuel.burn(-x)\n"),
        ("fuel.py", "def burn(x):\n    return -x\n"),
        ("tools/knife.py", "def cut(x):\n    return x, x\n"),
        ("tools/__init__.py", "SHARP = True\n"),
        ("__init__.py", "OPEN = True\n"),
    ],
)
def test_code_of_the_module_and_of_all_it_imports_counts(kitchen, name, text):
    before = source_digest("kitchen.cook")
    kitchen(name, text)
    assert source_digest("kitchen.cook") != before


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("oven.py", "from . import fuel"),
        ("oven.py", "from .fuel import burn"),
        ("tools/knife.py", "from .. import fuel"),
        ("tools/__init__.py", "from ..fuel import burn"),
    ],
)
def test_relative_imports_count(kitchen, name, line):
    kitchen("oven.py", "")
    kitchen(name, f"{line}\n")
    before = source_digest("kitchen.cook")
    kitchen("fuel.py", "def burn(x):\n    return -x\n")
    assert source_digest("kitchen.cook") != before


def test_what_is_not_imported_does_not_count(kitchen):
    before = source_digest("kitchen.cook")
    kitchen("unrelated.py", "x = 2\n")
    assert source_digest("kitchen.cook") == before
    kitchen("cook.py", "import kitchen.unrelated\n" + MODULE)
    with_it = source_digest("kitchen.cook")
    kitchen("unrelated.py", "x = 3\n")
    assert source_digest("kitchen.cook") not in (before, with_it)


def test_several_modules_have_one_digest_in_any_order(kitchen):
    both = source_digest("kitchen.cook", "kitchen.unrelated")
    assert source_digest("kitchen.unrelated", "kitchen.cook") == both
    assert both not in (source_digest("kitchen.cook"), source_digest("kitchen.unrelated"))


def test_nothing_is_imported_or_run(kitchen):
    kitchen("cook.py", MODULE + "\nraise SystemExit\n")
    assert len(source_digest("kitchen.cook")) == 12
    assert "kitchen" not in sys.modules


def test_a_module_that_is_not_there_is_named(kitchen):
    with pytest.raises(ValueError, match=r"no source file found for module 'kitchen\.sink'"):
        source_digest("kitchen.sink")


def test_each_experiment_has_a_digest_of_its_own():
    digests = {name: source_digest(f"cs336_systems.benchmarks.{name}") for name in EXPERIMENTS}
    assert len(set(digests.values())) == len(EXPERIMENTS)
