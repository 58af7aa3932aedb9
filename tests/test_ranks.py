"""The limit of tests on several ranks: processor time, since a busy host makes them slow and not wrong."""

import time

import pytest

from tests.support.ranks import on_all_ranks


@on_all_ranks
def sleeps(device):
    time.sleep(2.5)


@on_all_ranks
def computes(device):
    while True:
        sum(range(1000))


def test_a_test_that_waits_is_not_ended(groups):
    groups("gloo", 2).run(__name__, "sleeps", {}, seconds=0.5)


def test_a_test_that_computes_for_too_long_is_ended(groups):
    with pytest.raises(pytest.fail.Exception, match="rank 0 is still running\nrank 1 is still running"):
        groups("gloo", 2).run(__name__, "computes", {}, seconds=0.5)
