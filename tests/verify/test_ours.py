"""This project's implementations, and PyTorch's, are right in all cases; and a wrong one is not."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from cs336_systems.discovery import modules
from cs336_systems.handed_over import implementations_in
from cs336_systems.implementations import parse
from cs336_systems.parallel.data_parallel import DataParallel
from cs336_systems.verify.verdict import RIGHT, WRONG, verify

ROOT = Path(__file__).parents[2]
WRAPPERS = "cs336_systems.parallel.data_parallel"
OURS = {
    "attention": (
        "cs336_systems.attention:flash_attention",
        "cs336_systems.attention:TiledFlashAttention",
    ),
    "data_parallel": (
        f"{WRAPPERS}:NaiveDataParallel",
        f"{WRAPPERS}:FlatDataParallel",
        f"{WRAPPERS}:OverlappedDataParallel",
        f"{WRAPPERS}:BucketedDataParallel",
        "cs336_systems.parallel.symmetric_memory_data_parallel:SymmetricMemoryDataParallel",
    ),
    "sharded_optimizer": (
        "cs336_systems.parallel.sharded_optimizer:ShardedOptimizer",
        "cs336_systems.parallel.symmetric_memory_optimizer:SymmetricMemoryShardedOptimizer",
    ),
    "fsdp": ("cs336_systems.parallel.fsdp:FullyShardedDataParallel",),
}
"""Measured classes, each by one name."""
IMPLEMENTATIONS = [
    *(pytest.param(family, path, marks=pytest.mark.numeric) for family, paths in OURS.items() for path in paths),
    *(
        pytest.param(family, own.path, marks=[pytest.mark.gpu] * own.path.endswith("triton"))
        for family, own in implementations_in(ROOT / "tests/adapters.py")
    ),
]
"""The measured classes, and the adapters for the course's tests."""
WITH_TESTS_OF_THEIR_OWN = {"ShardedGradientsDataParallel"}
"""Wrappers that need an optimizer."""
PYTORCHS = {
    "data_parallel": "tests.support.pytorchs:ddp",
    "sharded_optimizer": "tests.support.pytorchs:zero",
    "fsdp": "tests.support.pytorchs:fsdp",
}
WRONG_IN = {
    "Unsynchronized": "the gradient of .* has a relative error of",
    "Summing": "2 times as large as the mean over ranks, as a sum over ranks is",
    "Alone": "differs from rank 0's after the model was wrapped, on rank 1",
    "Forgetful": r"the gradient of scale \[\] has a relative error of",
    "FirstStepOnly": "after 3 steps .* has a relative error of .* against a single process",
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory, launcher):
    """Verify an implementation of this project's folder."""
    log = tmp_path_factory.mktemp("verify") / "log"
    return lambda family, own: verify(family, own, ROOT, Path(log), launcher)


@pytest.mark.parametrize(("family", "path"), IMPLEMENTATIONS)
def test_ours_is_right_in_all_cases(verified, family, path):
    result = verified(family, parse(f"it={path}"))
    assert not result.grouped
    assert result.verdict == RIGHT


def test_no_wrapper_is_left_out():
    declared = [value for name in modules("cs336_systems.parallel") for value in vars(import_module(name)).values()]
    wrappers = {each.__name__ for each in declared if isinstance(each, type) and issubclass(each, DataParallel)}
    named = {path.partition(":")[2] for path in OURS["data_parallel"]}
    missing = wrappers - named - WITH_TESTS_OF_THEIR_OWN - {DataParallel.__name__}
    assert not missing, f"OURS of tests/verify/test_ours.py lacks {missing}: add package.module:name"


@pytest.mark.parametrize("family", PYTORCHS)
def test_pytorchs_is_right(verified, family):
    result = verified(family, parse(f"it={PYTORCHS[family]}"))
    assert result.verdict == RIGHT, result.reason


@pytest.mark.parametrize("name", WRONG_IN)
def test_what_is_wrong_is_noticed(verified, name):
    result = verified("data_parallel", parse(f"it=tests.support.wrong_wrappers:{name}"))
    assert result.verdict == (RIGHT if name == "Forgetful" else WRONG)  # of a number the handout's models have none
    assert any(re.search(WRONG_IN[name], reason) for _, reason, _ in result.grouped), result.grouped
