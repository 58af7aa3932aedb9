"""The process from which all ranks are forked."""

import pytest

from cs336_systems.verify.launcher import Launcher


@pytest.fixture(scope="session")
def launcher():
    with Launcher() as launcher:
        yield launcher
