"""Which implementations the conformance tests are run on: this project's, or one that `snakemake verify` names."""

import json
import re
import sys
from pathlib import Path

import pytest

from cs336_systems.implementations import check, label, parse
from tests.support.ranks import COLLECTIVE_TIMEOUT

OURS = {
    "attention": {
        "flash_attention": "cs336_systems.attention:flash_attention",
        "tiled": "cs336_systems.attention:TiledFlashAttention",
    },
    "data_parallel": {
        "overlapped": "tests.adapters:get_ddp",
        "bucketed": "tests.adapters:get_ddp_bucketed",
        "symmetric_memory": "cs336_systems.parallel.symmetric_memory_data_parallel:SymmetricMemoryDataParallel",
    },
    "sharded_optimizer": {
        "sharded": "tests.adapters:get_sharded_optimizer",
        "symmetric_memory": "cs336_systems.parallel.symmetric_memory_optimizer:SymmetricMemoryShardedOptimizer",
    },
    "fsdp": {"fsdp": "tests.adapters:get_fsdp"},
}
RAISED = re.compile(r"^(?:  .*\n)+([\w.]+)(?:: (.*))?$", re.M)
"""The end of a traceback: the exception and the first line of its message."""
OUTCOMES = pytest.StashKey()
HANGS_S = COLLECTIVE_TIMEOUT.seconds
"""A test that fails after so long has waited for something that never comes; each further test would, too."""


def pytest_addoption(parser):
    parser.addoption("--implementation", help="run on this one, as NAME=package.module:name, instead of this project's")
    parser.addoption("--from-folder", help="refuse an implementation whose module is not in this folder")
    parser.addoption("--outcomes", help="append each test's outcome to this file, a line of JSON each")


def pytest_configure(config):
    path = config.getoption("--outcomes", default=None)
    if path:
        config.stash[OUTCOMES] = Path(path)


def family_of(path):
    """tests/verify/test_fsdp.py is of fsdp."""
    return path.stem.removeprefix("test_")


def pytest_generate_tests(metafunc):
    if "implementation" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--implementation", default=None)
        family = family_of(Path(metafunc.module.__file__))
        ours = [f"{name}={path}" for name, path in OURS[family].items()]
        metafunc.parametrize("implementation", [asked] if asked else ours, ids=label)


def pytest_collection_finish(session):
    """Load what is asked for before any test: a sentence instead of as many errors as there are tests."""
    text = session.config.getoption("--implementation", default=None)
    if text:
        try:
            load(text, {family_of(item.path) for item in session.items}, session.config.getoption("--from-folder"))
        except ValueError as error:
            write(session.config, unloadable=str(error))
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


def load(text, families, folder):
    """Import an implementation and check its signature; its module has to be in the folder, if one is given.

    Raises:
        ValueError: in one sentence.
    """
    implementation = parse(text)
    for family in families:
        check(family, implementation)
    file = Path(sys.modules[implementation.module].__file__).resolve()
    if folder and not file.is_relative_to(Path(folder).resolve()):
        raise ValueError(f"{text} is in {file}; allowed: a module in {folder}, with a name that no other module has")


def write(config, **line):
    if OUTCOMES in config.stash:
        with config.stash[OUTCOMES].open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def case_of(item):
    """A test in words: the first line of its docstring, and the values that it is run with."""
    words = item.obj.__doc__.splitlines()[0].removesuffix(".")
    name = label(item.callspec.params["implementation"])
    values = [value for value in item.callspec.id.split("-") if value not in name.split("-")]
    return f"{words} ({', '.join(values)})" if values else words


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    write(item.config, begun=case_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or not report.passed:
        outcome, reason = judge(call.excinfo)
        write(item.config, case=case_of(item), outcome=outcome, reason=reason)
        if outcome == "failed" and call.duration > HANGS_S and OUTCOMES in item.config.stash:
            item.session.shouldstop = f"not tried after one that took {call.duration:.0f} s"
            write(item.config, case="the cases after it", outcome="skipped", reason=item.session.shouldstop)
    return report


def pytest_sessionfinish(session, exitstatus):
    """Tell that no test is missing: code under test may end the process, whatever its exit status is."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        write(session.config, finished=True)


def judge(excinfo):
    """The outcome of a test, and why: of several ranks' errors, the first that says what is wrong."""
    if excinfo is None:
        return "passed", ""
    if excinfo.errisinstance(pytest.skip.Exception):
        return "skipped", str(excinfo.value)
    text = str(excinfo.value)
    if excinfo.errisinstance(pytest.fail.Exception):
        raised = RAISED.findall(text) or [("", text.splitlines()[0])]
        kind, message = min(raised, key=lambda pair: pair[0] not in ("AssertionError", "NotImplementedError"))
    else:
        kind, message = excinfo.typename, text.partition("\n")[0]
    if kind == "NotImplementedError":
        return "unsupported", message or kind
    return "failed", message if kind in ("AssertionError", "") else f"it raises {kind}: {message}"
