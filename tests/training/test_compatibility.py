"""Each part with everything else: the table of docs/compatibility.md, field by field, on two ranks."""

import pytest
import torch.distributed as dist

from tests.support.ranks import on_all_ranks
from tests.training.compatibility import NOT_COMBINED, OTHERS, PAGE, PARTS, REFUSED, page, problem, takes_all_ranks

SLOW = {f"{kind}DataParallel" for kind in ("Naive", "Flat", "Overlapped")} | {"SymmetricMemoryShardedOptimizer"}
"""Entries that share their code with another."""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=other.name, marks=[pytest.mark.slow] if other.name in SLOW else [])
        for number, other in enumerate(OTHERS)
    ],
)
@on_all_ranks
def test_each_part_trains_as_pytorch_does_or_is_refused(device, number):
    if device.type == "cuda":
        return  # the table is one of semantics
    other, problems = OTHERS[number], {}
    for index, (name, part) in enumerate(PARTS.items()):
        mine = index % dist.get_world_size() == dist.get_rank()
        if (name, other.name) not in NOT_COMBINED and (mine or takes_all_ranks(part, other)):
            problems[name] = problem(name, other)
    assert not any(problems.values()), "\n".join(f"{name}: {text}" for name, text in problems.items() if text)


def test_the_page_is_up_to_date():
    assert {part for part, _ in REFUSED} <= set(PARTS)
    assert {other for _, other in REFUSED} <= {other.name for other in OTHERS}
    assert PAGE.read_text() == page(), "python -m tests.training.compatibility"
