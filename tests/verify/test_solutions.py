"""Solutions of the handout as they differ from each other: each is tested against what was asked, without an edit."""

import re

import pytest

from cs336_systems.handed_over import handed_over, implementations_in
from cs336_systems.verify.folder import read_only_copy
from cs336_systems.verify.verdict import CANNOT_BE_LOADED, CANNOT_RUN, RIGHT, UNSUPPORTED, verify
from tests.samples import ROOT
from tests.support.files import write_files

ATTENTION = """
import math, torch
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1) @ v
"""
EXAMPLES = {path.stem: path.read_text() for path in (ROOT / "examples/my_systems").glob("*.py")}
FSDP = (
    EXAMPLES["fsdp"]
    .replace("from torch import", "from cs336_basics.model import Embedding, Linear\nfrom torch import")
    .replace("nn.Linear | nn.Embedding", "Linear | Embedding")
    .replace("__init__()\n", "__init__()\n        if compute_dtype: raise NotImplementedError('fp32 only')\n")
    .replace("gather_full_parameters", "collect")
)
FSDP_ADAPTERS = """
from cs336_systems.fsdp import FSDP
def get_fsdp(module, compute_dtype=None): return FSDP(module, compute_dtype)
def fsdp_on_after_backward(fsdp_model, optimizer): fsdp_model.finish_gradient_synchronization()
def fsdp_gather_full_params(fsdp_model): return fsdp_model.collect()
"""
BASICS = {
    "cs336-basics/cs336_basics/__init__.py": "",
    "cs336-basics/cs336_basics/model.py": (ROOT / "examples/class/emmy/cs336-basics/cs336_basics/model.py").read_text(),
}
OF_ATTENTION = "def get_flashattention_autograd_function_pytorch():\n    {}\n"
SOLUTIONS = {
    "imports at the top, where another family's module cannot be imported": (
        {
            "tests/adapters.py": "from cs336_systems.ddp import DDP\nfrom cs336_systems.kernels import kernel\n"
            + OF_ATTENTION.format("from cs336_systems.flash import Flash; return Flash")
            + "def get_flashattention_autograd_function_triton(): return kernel()\n"
            + "def get_ddp(module): return DDP(module)\n",
            "cs336_systems/flash.py": ATTENTION,
            "cs336_systems/kernels.py": "from triton.gone import kernel\n",
            "cs336_systems/ddp.py": "import sys\nsys.exit('usage: ddp.py CONFIG')\n",
        },
        {
            "adapter-pytorch": (RIGHT, "4 not supported; .*: it has no backward pass"),
            "adapter-triton": (
                CANNOT_RUN,
                "it needs the package triton.gone, which is not installed, at tests/adapters",
            ),
            "adapter-ddp": (CANNOT_BE_LOADED, r"^ImportError: its import raises SystemExit\('usage: ddp.py CONFIG'\)"),
        },
    ),
    "a package that is missing, at the top and where it is used": (
        {
            "tests/adapters.py": "from cs336_systems.flash import Flash\nfrom no_such import typed\n"
            + OF_ATTENTION.format("return Flash"),
            "cs336_systems/flash.py": f"import no_such as ns\n{ATTENTION}".replace("@ v", "@ ns.rearrange(v)"),
        },
        {"adapter-pytorch": (CANNOT_RUN, "^it needs the package no_such, which is not installed, at cs336_systems/fl")},
    ),
    "a folder of data that is a package, and adapters by assignment": (
        {
            "tests/adapters.py": "from cs336_systems.data.flash import Flash\n"
            "get_flashattention_autograd_function_pytorch = lambda: Flash\n",
            "cs336_systems/data/flash.py": ATTENTION,
            "cs336_systems/__init__.py": "",
        },
        {"adapter-pytorch": (RIGHT, "")},
    ),
    "both editions' adapters, each with its own calls, and the other name of a size": (
        {
            "tests/adapters.py": "from cs336_systems.ddp import DDP\n"
            "def get_ddp_individual_parameters(module): return DDP(module)\n"
            "def ddp_individual_parameters_on_after_backward(ddp_model, optimizer): ddp_model.finish()\n"
            "def get_ddp(module):\n    found = DDP(module)\n    found.finish_2026 = found.finish\n    return found\n"
            "def ddp_on_after_backward(ddp_model, optimizer): ddp_model.finish_2026()\n"
            "def get_ddp_bucketed(module, mb): assert mb > 0; return DDP(module)\n"
            "def ddp_bucketed_on_train_batch_start(ddp_model, optimizer): ddp_model.began = True\n"
            "def ddp_bucketed_on_after_backward(ddp_model, optimizer):\n"
            "    assert ddp_model.began; del ddp_model.began; ddp_model.finish()\n",
            "cs336_systems/ddp.py": EXAMPLES["ddp"].replace("finish_gradient_synchronization", "finish"),
        },
        {f"adapter-{name}": (RIGHT, "^4 of 4 handout cases") for name in ("individual", "ddp", "bucketed")},
    ),
    "FSDP of the handout's layers": (
        {"tests/adapters.py": FSDP_ADAPTERS, "cs336_systems/fsdp.py": FSDP, **BASICS},
        {"adapter-fsdp": (RIGHT, "^1 of 1 handout cases right and 1 not supported")},
    ),
    "the same where the handout's layers are another repository's": (
        {"tests/adapters.py": FSDP_ADAPTERS, "cs336_systems/fsdp.py": FSDP},
        {"adapter-fsdp": (RIGHT, "^1 of 1 handout cases right and 1 not supported")},
    ),
    "a class with the function that gathers its weights next to it": (
        {
            "implementations.yaml": "fsdp: {mine: 'cs336_systems.fsdp:FSDP'}\n",
            "cs336_systems/fsdp.py": f"{FSDP}\ndef get_full_params_state_dict(model):\n    return model.collect()\n",
        },
        {"mine": (RIGHT, "^1 of 1 handout cases right")},
    ),
    "an optimizer in a folder of sources": (
        {
            "tests/adapters.py": "from cs336_systems import optim\n"
            "def get_sharded_optimizer(params, optimizer_cls, **kwargs):\n"
            "    return optim.ShardedOptimizer(params, optimizer_cls, **kwargs)\n",
            "src/cs336_systems/optim.py": EXAMPLES["sharded_optimizer"],
        },
        {"adapter-optimizer": (RIGHT, "2 of 2 handout cases right; 11 of 11 other cases")},
    ),
    "an optimizer whose own groups lack the learning rate, which only schedulers need": (
        {
            "implementations.yaml": "sharded_optimizer: {mine: 'optim:ShardedOptimizer'}\n",
            "optim.py": EXAMPLES["sharded_optimizer"].replace("__init__(params, kwargs)", "__init__(params, {})"),
        },
        {"mine": (RIGHT, "2 of 2 handout cases right; 9 of 11 other cases")},
    ),
    "adapters that return nothing": (
        {"tests/adapters.py": OF_ATTENTION.format("pass") + "def get_fsdp(module, compute_dtype=None): pass\n"},
        {
            "adapter-pytorch": (
                "wrong",
                "TypeError: get_flash.*_pytorch gives NoneType; allowed: a function of q",
            ),
            "adapter-fsdp": ("wrong", "TypeError: get_fsdp gives NoneType; allowed: a module"),
        },
    ),
    "nothing yet": (
        {
            "tests/adapters.py": OF_ATTENTION.format("raise NotImplementedError")
            + "def get_fsdp(module, compute_dtype=None): raise NotImplementedError('my FSDP is not done')\n",
            "cs336_systems/__init__.py": "",
        },
        {
            "adapter-pytorch": (UNSUPPORTED, "not implemented, at tests/adapters.py:2"),
            "adapter-fsdp": (UNSUPPORTED, "^my FSDP is not done$"),
        },
    ),
}


@pytest.mark.parametrize("kind", SOLUTIONS)
def test_each_kind_of_solution_is_judged_as_it_is(tmp_path, launcher, kind):
    files, expected = SOLUTIONS[kind]
    write_files(tmp_path / "ada", files)
    with (tmp_path / "ada/profile.nsys-rep").open("wb") as profile:
        profile.truncate(10**9)
    with read_only_copy(tmp_path / "ada") as copy:
        for family, each in implementations_in(handed_over(tmp_path / "ada")):
            result = verify(family, each, copy, tmp_path / "log", launcher)
            verdict, reason = expected[each.name]
            assert result.verdict == verdict, (each.name, result.reason)
            assert re.search(reason, result.reason), result.reason
