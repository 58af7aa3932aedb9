"""Windows, softcap, sinks and packed documents of attention on a CPU."""

from functools import partial

import pytest
import torch

from cs336_systems.attention import flash_attention, flash_attention_varlen
from cs336_systems.attention.options import Options
from tests.attention.cases import Case, bounds, check, make_inputs, results

ONE = ((150, 150),)
CASES = {
    "causal window": Case(ONE, is_causal=True, window_size=(40, -1)),
    "window of one key": Case(ONE, window_size=(0, 0)),
    "window to the left": Case(ONE, window_size=(70, -1), d=40),
    "window to the right": Case(ONE, window_size=(-1, 5)),
    "wide window": Case(((200, 190),), window_size=(66, 65), heads=4),
    "queries without keys": Case(((201, 33),), is_causal=True, window_size=(10, -1)),
    "keys without queries": Case(((33, 201),), window_size=(64, 10)),
    "one query": Case(((1, 130),), window_size=(3, 64)),
    "one key": Case(((130, 1),), window_size=(64, 0)),
    "softcap": Case(ONE, softcap=3.0, d=24),
    "softcap, causal": Case(ONE, is_causal=True, softcap=0.7),
    "sinks": Case(ONE, has_sinks=True),
    "sinks, causal, groups": Case(((150, 131),), is_causal=True, has_sinks=True, heads=4),
    "sinks of queries without keys": Case(((201, 33),), is_causal=True, window_size=(10, -1), has_sinks=True),
    "sinks, two batch axes": Case(((5, 7),), 8, 3, 3, has_sinks=True, batch=(2, 2)),
    "sinks, no batch axis": Case(((5, 7),), 8, 3, 3, has_sinks=True, batch=()),
    "sinks, an empty batch": Case(((5, 7),), 8, 3, 3, has_sinks=True, batch=(0,)),
    "all, groups": Case(((131, 150),), 24, 4, 2, True, (65, 3), 2.0, True),
    "packed": Case(((70, 70), (1, 1), (130, 130)), packed=True),
    "packed, causal": Case(((64, 64), (65, 65), (17, 17)), packed=True, is_causal=True),
    "packed, other keys": Case(((70, 33), (5, 140)), packed=True, is_causal=True, heads=4),
    "empty documents": Case(((0, 0), (40, 0), (0, 50), (66, 66), (0, 0)), packed=True, is_causal=True),
    "tokens after the last document": Case(((40, 40), (66, 66)), packed=True, is_causal=True, extra=70),
    "packed, multiples of four": Case(((68, 72), (132, 64), (0, 20)), 24, 4, 2, True, (70, -1), 2.0, True, True, 12),
    "packed, all": Case(((131, 131), (70, 90), (17, 1)), 24, 4, 2, True, (33, -1), 2.0, True, True, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_options(name, dtype):
    check(CASES[name], dtype)


def test_a_window_that_hides_nothing_changes_no_bit():
    inputs = make_inputs(Case(ONE), torch.float32)
    want = results(Case(ONE), inputs, window_size=None, softcap=None, deterministic=True)
    for window in ((-1, -1), (149, 149), (10**9, 10**9), [None, None]):
        got = results(Case(ONE), inputs, window_size=window)
        assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_sink_far_from_the_scores():
    q, k, v = torch.randn(3, 1, 2, 90, 16)
    o, lse = flash_attention(q, k, v, sinks=torch.tensor([-torch.inf, 1e4]), return_lse=True)
    torch.testing.assert_close(o[:, 0], flash_attention(q, k, v)[:, 0])
    assert torch.equal(o[:, 1], torch.zeros(1, 90, 16))
    assert torch.equal(lse[:, 1], torch.full((1, 90), 1e4))


MASKED = CASES["all, groups"], CASES["packed, all"]


@pytest.mark.parametrize("case", MASKED, ids=["dense", "packed"])
def test_compiled_in_one_graph(case):
    wrap = partial(torch.compile, fullgraph=True, backend="aot_eager")
    check(case, torch.float32, compute=partial(results, wrap=wrap))


@pytest.mark.parametrize("case", MASKED, ids=["dense", "packed"])
def test_operators_keep_their_contract(case):
    inputs = make_inputs(case, torch.float32)
    q, k, v, do, dlse, sinks = inputs.values()
    packed = bounds(case) if case.packed else (None, None)
    options = Options(True, 0.3, *case.window_size, case.softcap, False, sinks, *packed)
    operators = torch.ops.cs336_systems
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(operators.attention_forward, (*leaves, *options))
    o, lse = operators.attention_forward(q, k, v, *options)
    torch.library.opcheck(operators.attention_backward, (do, q, k, v, o, lse, dlse, *options))


def test_torch_func():
    """Windows and softcap under vmap and grad; sinks under grad only, and the rest is refused."""
    q, k, v = torch.randn(3, 3, 2, 40, 8)
    options = {"window_size": (9, 2), "softcap": 2.0}

    def loss(q, **more):
        return flash_attention(q, k[0], v[0], **options, **more).square().sum()

    leaf = q.clone().requires_grad_()
    (want,) = torch.autograd.grad(sum(loss(x) for x in leaf), leaf)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(q), want)
    sinks = torch.randn(2, requires_grad=True)
    got = torch.func.grad(lambda x: loss(q[0], sinks=x))(sinks)
    torch.testing.assert_close(got, torch.autograd.grad(loss(q[0], sinks=sinks), sinks)[0])
    with pytest.raises(NotImplementedError, match="does not support sinks or packed documents under vmap"):
        torch.func.vmap(lambda x: flash_attention(x, k[0], v[0], sinks=sinks))(q)
    with pytest.raises(NotImplementedError, match="flash_attention has no forward-mode"):
        torch.func.jvp(lambda x: loss(x, sinks=sinks), (q[0],), (q[0],))


def test_autocast_casts_no_sinks():
    q = torch.randn(2, 70, 16)
    sinks = torch.randn(2)
    with torch.autocast("cpu", torch.bfloat16):
        got = flash_attention(q, q, q, sinks=sinks)
    want = flash_attention(*[q.bfloat16()] * 3, sinks=sinks)
    assert torch.equal(got, want)


ENDS = torch.tensor([0, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 4, 2, 8)}, r"q must be \[tokens, heads, d\], got shape \[1, 4, 2, 8\]"),
        ({"k": None}, "The inputs must be tensors, got NoneType"),
        ({"cu_seqlens_q": [0, 4]}, r"cu_seqlens_q must be a tensor, got \[0, 4\]"),
        ({"cu_seqlens_k": ENDS.long()}, r"cu_seqlens_k must be int32, .* got torch\.int64"),
        ({"cu_seqlens_k": ENDS[:1]}, r"cu_seqlens_k must be int32, .* \[1\]"),
        ({"cu_seqlens_k": ENDS.to("meta")}, "cu_seqlens_k must be on the device of q and k, got meta"),
        ({"cu_seqlens_k": ENDS[[0, 0, 1]]}, "the same number of documents, got 2 and 3 numbers"),
        ({"cu_seqlens_q": ENDS + 1}, r"cu_seqlens_q must start with 0, .* got \[1, 5\]"),
        ({"cu_seqlens_q": ENDS * 2}, r"end at most at 4 tokens, got \[0, 8\]"),
        ({"cu_seqlens_q": ENDS[[0, 1, 0]], "cu_seqlens_k": ENDS[[0, 1, 1]]}, r"never decrease, .* got \[0, 4, 0\]"),
        ({"max_seqlen_q": 4.0}, r"max_seqlen_q must be a number of tokens or None, got 4\.0"),
        ({"k": torch.zeros(4, 1, 8), "v": torch.zeros(4, 1, 8)}, "enable_gqa=True"),
    ],
)
def test_a_mistake_gets_one_sentence_with_the_value(change, message):
    arguments = {name: torch.zeros(4, 2, 8) for name in "qkv"} | {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS} | change
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        flash_attention_varlen(**arguments)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)
