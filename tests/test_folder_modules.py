"""Code of a folder whose packages have this project's names: each way to import finds the folder's own modules."""

import inspect
import pickle
import shutil
import sys
import typing

import pytest
import torch

import cs336_systems
from cs336_systems.folder_modules import FolderModules, MissingPackage
from tests.support.files import write_files

FILES = {
    "cs336_systems/__init__.py": "from importlib.metadata import version\n__version__ = version('cs336_basics')\n",
    "cs336_systems/config.py": "WHOSE = 'theirs'\n",  # this project has one, too
    "cs336_systems/inner/deep.py": "from ..config import WHOSE\n",
    "cs336-basics/cs336_basics/__init__.py": "",
    "cs336-basics/cs336_basics/model.py": "class Linear: ...\nclass Embedding: ...\nother = 'theirs'\n",
    "src/elsewhere.py": "WHOSE = 'theirs'\n",
    "scripts/helper.py": "WHOSE = 'theirs'\n",
    "tests/neighbour.py": "WHOSE = 'theirs'\n",
    "random.py": "raise SystemExit('it has the name of one of Python\\'s own modules')\n",
    "wandb/run-1/config.yaml": "",
}
IMPORTS = {
    "at the top": "from cs336_systems.config import WHOSE\ndef whose(): return WHOSE\n",
    "in a function": "def whose():\n    from cs336_systems.config import WHOSE\n    return WHOSE\n",
    "of the package": "import cs336_systems.config\ndef whose(): return cs336_systems.config.WHOSE\n",
    "by another name": "import cs336_systems.inner.deep as d\ndef whose(): return d.WHOSE\n",
    "of a module from its package": "from cs336_systems import config\ndef whose(): return config.WHOSE\n",
    "from its own package": "from . import neighbour\ndef whose(): return neighbour.WHOSE\n",
    "by importlib": "import importlib\ndef whose(): return importlib.import_module('cs336_systems.config').WHOSE\n",
    "by importlib's function": "from importlib import import_module\n"
    "def whose(): return import_module('.config', 'cs336_systems').WHOSE\n",
    "by __import__": "def whose(): return __import__('cs336_systems.config').config.WHOSE\n",
    "from src": "from elsewhere import WHOSE\ndef whose(): return WHOSE\n",
    "from a folder on sys.path": "import os, sys\nsys.path.append(os.path.dirname(__file__) + '/../scripts')\n"
    "from helper import WHOSE\ndef whose(): return WHOSE\n",
    "of Python's own": "import random\ndef whose(): return random.random() and 'theirs'\n",
    "of all names": "from cs336_systems.config import *\ndef whose(): return WHOSE\n",
    "of a package that may be missing": "try: import no_such_package as found\nexcept ImportError: found = None\n"
    "def whose(): return found or 'theirs'\n",
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write files into a folder, and make its modules importable until the test ends."""
    made = []
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(**files):
        write_files(tmp_path, {**FILES, **files})
        made.append(FolderModules(tmp_path))
        return made[-1]

    yield make
    for each in made:
        sys.meta_path.remove(each)
        for name in [name for name in sys.modules if name.partition(".")[0] == each.package]:
            del sys.modules[name]


@pytest.mark.parametrize("how", IMPORTS)
def test_each_way_to_import_finds_the_folders_own(modules, how):
    module = modules(**{"tests/adapters.py": IMPORTS[how]}).load("tests.adapters")
    assert module.whose() == "theirs"
    assert sys.modules["cs336_systems"] is cs336_systems
    assert not {"elsewhere", "helper", "cs336_basics"} & sys.modules.keys()


NO_SUCH = (MissingPackage, "it needs the package no_such, which is not installed")
ABSENT = {
    "a missing package": ("import no_such.part as x", *NO_SUCH),
    "names of one": ("from no_such.part import x", *NO_SUCH),
    "one that another module needs": ("from cs336_systems.needs import x", *NO_SUCH),
    "a name in annotations": (
        "from no_such.part import x\ndef g(a: x['b c'] | None, *b: list[x]) -> x: ...\n@x\ndef decorated(): ...",
        *NO_SUCH,
    ),
    "what it writes": ("import wandb as x", MissingPackage, "it needs the package wandb, which is not installed"),
    "this project's": ("import examples as x", MissingPackage, "the package examples, which is not in its folder"),
    "a module that raises": ("import cs336_systems.raises as x", TypeError, "of itself"),
    "one from its package": ("from cs336_systems import raises as x", TypeError, "of itself"),
    "one that ends the process": ("from cs336_systems.ends import x", ImportError, r"SystemExit\('usage'\)"),
    "a module that is no Python": ("from cs336_systems.broken import x", SyntaxError, "invalid syntax"),
    "a name that is gone": ("from cs336_systems.gone import x", ImportError, "cannot import name 'y' from 'cs336_syst"),
}
BROKEN = {
    "cs336_systems/needs.py": "import no_such\ndef x(): return no_such.x()\n",
    "cs336_systems/needs_too.py": "import no_such_either\nfrom cs336_systems.config import WHOSE\n",
    "cs336_systems/raises.py": "raise TypeError('of itself')\n",
    "cs336_systems/ends.py": "raise SystemExit('usage')\n",
    "cs336_systems/broken.py": "<<<<<<< HEAD\n",
    "cs336_systems/gone.py": "from cs336_systems.config import y\nx = y\n",
}
ADAPTERS = """
{}
import cs336_systems.config as config
class Derived(getattr(x, "Base", object)): ...
def works(): return config.WHOSE
def works_later():
    import cs336_systems.needs_too
    return cs336_systems.needs_too.WHOSE
def fails(): return x()
def fails_too(): return isinstance(1, (str, x))
def fails_at_last(): return [*x]
"""


@pytest.mark.parametrize("what", ABSENT)
def test_what_cannot_be_imported_fails_where_it_is_used(modules, what):
    statement, kind, message = ABSENT[what]
    module = modules(**BROKEN, **{"tests/adapters.py": ADAPTERS.format(statement)}).load("tests.adapters")
    assert module.works() == module.works_later() == "theirs"
    others = (module.fails_too, module.fails_at_last) if "needs" not in statement else ()
    for fails in (module.fails, *others):
        with pytest.raises(kind, match=message):
            fails()


LANGUAGE = '''
from __future__ import annotations
import dataclasses, torch, triton, triton.language as tl
from cs336_systems.config import WHOSE

@dataclasses.dataclass
class Settings:
    """Of theirs."""
    inner: Settings | None = None

@triton.jit
def helper(x):
    return x * 2

@triton.jit
def kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, helper(tl.load(x + i)))

def compiled(x):
    from cs336_systems.inner.deep import WHOSE as again
    return torch.compile(lambda x: x * len(WHOSE) + max(len(again), 1), dynamic=False)(x)

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        from cs336_systems.config import WHOSE
        return g * len(WHOSE)
'''


def test_what_looks_at_modules_finds_them(modules):
    module = modules(**{"cs336_systems/language.py": LANGUAGE}).load("cs336_systems.language")
    settings = module.Settings
    assert typing.get_type_hints(settings)["inner"] == settings | None
    assert pickle.loads(pickle.dumps(settings(settings()))) == settings(settings())
    assert '"""Of theirs."""' in inspect.getsource(settings)
    assert inspect.getsourcelines(module.kernel.fn)[1] == LANGUAGE.splitlines().index("def kernel(x, N: tl.constexpr):")
    assert torch.equal(module.compiled(torch.ones(3)), torch.full((3,), 12.0))
    x = torch.ones(2, requires_grad=True)
    module.Doubled.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 6.0))


def interpreted(modules):
    """Kernels run, in the process of tests/training/test_interpreted.py."""
    kernel = modules(**{"cs336_systems/language.py": LANGUAGE}).load("cs336_systems.language").kernel
    x = torch.ones(16)
    kernel[(1,)](x, 16)
    assert torch.equal(x, torch.full((16,), 2.0))


@pytest.mark.parametrize("has_basics", [True, False])
def test_layers_of_the_timed_model_pass_for_the_handouts(modules, has_basics):
    code = "from cs336_basics.model import Linear, Embedding\nimport cs336_basics.model as whole\n"
    made = modules(**{"tests/adapters.py": code})
    if not has_basics:
        shutil.rmtree(made.folder / "cs336-basics")
    module = made.load("tests.adapters")
    assert module.Linear is module.whole.Linear is torch.nn.Linear
    assert module.Embedding is torch.nn.Embedding
    assert has_basics == (module.whole.other == "theirs")
