"""Named ranges: visible to a profiler that listens, and absent otherwise."""

import torch
from torch._dynamo.testing import CompileCounter

from cs336_systems.attention import plain_attention
from cs336_systems.ranges import listening


def names_recorded():
    q = torch.randn(2, 8, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        plain_attention(q, q, q, is_causal=True)
    return [event.name for event in profiler.events() if not event.name.startswith("aten::")]


def test_ranges_exist_while_somebody_listens():
    assert names_recorded() == []
    with listening():
        assert names_recorded() == ["scores", "softmax", "final product"]
    assert names_recorded() == []


def test_ranges_neither_break_a_compiled_graph_nor_compile_it_again():
    q = torch.randn(2, 8, 4)
    counter = CompileCounter()
    compiled = torch.compile(plain_attention, fullgraph=True, backend=counter)
    torch.testing.assert_close(compiled(q, q, q, is_causal=True), plain_attention(q, q, q, is_causal=True))
    with listening():
        compiled(q, q, q, is_causal=True)
    assert counter.frame_count == 1
