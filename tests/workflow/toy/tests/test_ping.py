"""The code that the toy experiment measures."""

import pytest
import torch
from cs336_systems.experiments.ping import Ping

from cs336_systems.benchmarks import ping


@pytest.mark.numeric
def test_a_lone_ping_is_counted_once():
    measurements = {row.metric: row for row in ping.measure(Ping(processes=1), torch.device("cpu"))}
    assert measurements["sum"].mean == 1
