"""Options of attention on a GPU: the Triton kernels against float64, by the rule of test_attention.py."""

from functools import partial

import pytest
import torch

from cs336_systems.attention import flash_attention, flash_attention_varlen
from tests.attention.test_options import Case, excess, make_inputs, results

pytestmark = pytest.mark.gpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DOCUMENTS = ((1, 1), (17, 17), (0, 0), (1001, 1001), (64, 64), (333, 333))
UNEQUAL = ((1, 200), (300, 1), (513, 400), (17, 0), (0, 40), (700, 1001))

CASES = {
    "causal window": (Case(((1001, 1001),), 64, 4, 2, True, (255, -1)), (BF16, FP32)),
    "window": (Case(((1001, 777),), 128, 4, 4, False, (100, 300)), (BF16, FP32)),
    "softcap": (Case(((1001, 1001),), 128, 4, 2, True, softcap=2.0), (BF16, FP16, FP32)),
    "sinks": (Case(((1001, 1001),), 64, 4, 2, True, has_sinks=True), (BF16, FP32)),
    "packed": (Case(DOCUMENTS, 64, 4, 2, True, packed=True), (BF16, FP32)),
    "packed, all": (Case(UNEQUAL, 128, 4, 2, True, (65, -1), 2.0, True, True, 70), (BF16, FP32)),
    "17 tokens": (Case(((17, 17),), 40, 4, 2, True, (5, -1), 2.0, True), (BF16, FP32)),
    "one query": (Case(((1, 1001),), 64, 4, 4, False, (3, 500)), (BF16,)),
    "one key": (Case(((1001, 1),), 64, 4, 4, False, (500, 3)), (BF16,)),
    "queries without keys": (Case(((1001, 17),), 128, 4, 2, True, (100, -1)), (BF16, FP32)),
    "keys without queries": (Case(((17, 1001),), 64, 4, 2, False, (100, 33)), (BF16,)),
    "to the left": (Case(((1001, 1001),), 64, 2, 2, False, (700, -1)), (BF16,)),
    "to the right": (Case(((1001, 1001),), 64, 2, 2, False, (-1, 7)), (BF16,)),
    "softcap, all keys": (Case(((1001, 700),), 40, 4, 4, softcap=20.0), (BF16, FP32)),
    "sinks, all keys": (Case(((1001, 1001),), 40, 4, 1, has_sinks=True), (FP16,)),
    "wide heads": (Case(((333, 333),), 256, 4, 2, True, (99, -1), 2.0, True), (BF16, FP32)),
    "odd heads": (Case(((333, 333),), 17, 4, 2, False, (99, 20), 2.0, True), (BF16,)),
    "descriptors": (Case(((2100, 2100),), 64, 16, 4, True, (1023, -1), has_sinks=True), (BF16,)),
    "descriptors, wide window": (Case(((2100, 2000),), 128, 16, 16, False, (1023, 511)), (BF16,)),
    "descriptors, softcap": (Case(((2100, 2100),), 128, 16, 4, False, softcap=20.0), (BF16,)),
    "descriptors, softcap, causal": (Case(((2100, 2100),), 64, 16, 4, True, softcap=2.0), (BF16,)),
    "packed, unequal": (Case(UNEQUAL, 40, 4, 1, False, packed=True), (BF16, FP32)),
    "packed, window": (Case(DOCUMENTS, 64, 4, 4, False, (33, 64), packed=True), (FP16,)),
    "packed, many": (Case(((1501, 1501),) * 8, 128, 2, 1, True, packed=True), (BF16,)),
    "packed, many, window": (Case(((1501, 1401),) * 8, 64, 2, 1, True, (333, -1), packed=True, extra=77), (BF16,)),
    "packed, many, all keys": (Case(((1037, 1201),) * 16, 128, 1, 1, False, packed=True), (FP16,)),
    "packed, short": (Case(((3, 4),) * 1100, 64, 2, 2, True, packed=True, extra=5), (BF16,)),
}
PARAMETERS = [
    pytest.param(case, dtype, id=f"{name} {str(dtype)[6:]}")
    for name, (case, dtypes) in CASES.items()
    for dtype in dtypes
]


@pytest.fixture(autouse=True)
def full_precision_reference():
    assert torch.backends.cuda.matmul.allow_tf32 is False, "the fp32 reference would be in TF32"


@pytest.mark.parametrize(("case", "dtype"), PARAMETERS)
def test_error_is_at_most_twice_that_of_pytorch(case, dtype):
    inputs = make_inputs(case, dtype, "cuda")
    assert not excess(case, inputs, results(case, inputs))


@pytest.mark.parametrize("name", ["causal window", "packed, all"])
def test_compiled_in_one_graph(name):
    case = CASES[name][0]
    inputs = make_inputs(case, BF16, "cuda")
    assert not excess(case, inputs, results(case, inputs, partial(torch.compile, fullgraph=True)))


@pytest.mark.parametrize("d", [64, 128])
def test_deterministic_gradients_have_the_same_bits(d):
    """Also where the Hopper kernels compute the output."""
    case = Case(((2100, 2100),), d, 16, 4, True)
    inputs = make_inputs(case, BF16, "cuda")
    first = results(case, inputs, deterministic=True)
    assert not excess(case, inputs, dict(first))
    for _ in range(5):
        again = results(case, inputs, deterministic=True)
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_cuda_graph_replays_with_other_documents():
    """Nothing of the bounds is read back."""
    q = torch.randn(600, 4, 64, device="cuda", dtype=BF16)
    ends = torch.tensor([0, 100, 600, 600], device="cuda", dtype=torch.int32)

    def attend():
        return flash_attention_varlen(q, q, q, ends, ends, is_causal=True)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attend()
    ends.copy_(torch.tensor([0, 17, 300, 599]))
    graph.replay()
    parts = (slice(0, 17), slice(17, 300), slice(300, 599))
    want = [flash_attention(*[q[part].transpose(0, 1)] * 3, True).transpose(0, 1) for part in parts]
    torch.testing.assert_close(o[:599], torch.cat(want), rtol=0.02, atol=0.02)
    assert not o[599:].any()


@pytest.mark.parametrize("n", [100, 17001])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_what_is_no_number_stays_in_its_document(d, n, is_causal):
    """With pointers, and with descriptors, which load rows of the next document."""
    case = Case(((n, n), (65, 65)), d, 2, 2, is_causal, packed=True)
    inputs = make_inputs(case, BF16, "cuda")
    for name in ("q", "k", "v", "do", "dlse"):
        inputs[name][:, :, n:] = torch.nan
    got = results(case, inputs)
    assert all(x[:, :, :n].isfinite().all() for x in got.values())


def test_memory_is_linear():
    """65536 tokens with a window: the score matrix alone would take 8 GiB in bf16."""
    torch.cuda.empty_cache()
    q, k, v, do = (torch.randn(1, 65536, 64, device="cuda", dtype=BF16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    sinks = torch.randn(1, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = flash_attention(*leaves, True, window_size=(1023, 0), sinks=sinks)
    torch.autograd.grad(o, [*leaves, sinks], do)
    assert torch.cuda.max_memory_allocated() - before < 16 * q.nbytes
