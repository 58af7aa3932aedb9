"""The Hopper kernels: against float64 by the rule of cases.py, and as they compile. See also test_attention_gpu.py."""

import itertools
import re
import subprocess
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.attention.cases import (
    INFINITE,
    Case,
    check,
    dense,
    differences_where_scores_are_infinite,
    excess,
    function_results,
    launch_results,
    make_inputs,
    parametrized,
    results,
)
from tests.attention.conftest import LIMIT, is_hopper

pytest.importorskip("triton.experimental.gluon", reason="needs Triton with Gluon")

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import compile as compile_kernel
from triton.compiler import make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from cs336_systems.attention import chip, gpu_attention, triton_launch
from cs336_systems.attention.gpu_attention import GpuFlashAttention
from cs336_systems.attention.hopper import launch
from cs336_systems.attention.hopper.launch import is_faster
from cs336_systems.attention.hopper.tile_config import ForwardTiles
from cs336_systems.attention.launcher import Launch
from cs336_systems.attention.options import Options, Variant

BF16, FP16 = torch.bfloat16, torch.float16
HOPPER = GPUTarget("cuda", 90, 32)


def on_gpu(test):
    skip = pytest.mark.skipif(not is_hopper(), reason="no Hopper GPU")
    for mark in (pytest.mark.gpu, skip, LIMIT, pytest.mark.usefixtures("hopper_kernels")):
        test = mark(test)
    return test


# batch, heads, n_queries, n_keys, d; dtypes. All with a causal mask and without. Tiles have 64, 128 or 192 queries and
# 128 keys: lengths at their edges, lengths that none divides, fewer queries than keys and more.
CORE = [  # part of the gate before measuring
    ((2, 3, 128, 128, 64), (BF16, FP16)),
    ((2, 3, 128, 128, 128), (BF16, FP16)),
    ((2, 3, 128, 128, 96), (BF16, FP16)),
    ((1, 2, 257, 1000, 64), (BF16,)),
    ((1, 2, 1000, 257, 128), (BF16,)),
    ((1, 2, 257, 390, 80), (BF16,)),
    ((2, 2, 300, 310, 40), (BF16,)),
]
MORE = [
    ((1, 2, 1, 1, 64), (BF16,)),
    ((1, 2, 1, 300, 64), (BF16, FP16)),
    ((1, 2, 300, 1, 64), (BF16,)),
    ((1, 2, 1, 300, 128), (BF16,)),
    ((1, 2, 300, 1, 128), (BF16, FP16)),
    ((1, 2, 1, 300, 96), (BF16,)),
    ((1, 2, 300, 1, 72), (BF16,)),
    ((2, 2, 63, 65, 64), (BF16,)),
    ((2, 2, 65, 63, 128), (BF16,)),
    ((1, 2, 192, 129, 64), (BF16,)),
    ((1, 2, 193, 127, 64), (BF16,)),
    ((1, 2, 257, 1000, 64), (FP16,)),
    ((1, 2, 1000, 257, 64), (BF16,)),
    ((1, 2, 257, 1000, 128), (BF16,)),  # most tiles of keys are seen by no query
    ((1, 2, 1000, 257, 128), (FP16,)),
    ((1, 5, 64, 1024, 64), (BF16,)),
    ((1, 7, 64, 1024, 128), (BF16,)),
    ((3, 5, 333, 333, 64), (BF16,)),
    ((3, 5, 333, 333, 128), (BF16,)),
    ((2, 2, 300, 300, 8), (BF16,)),
    ((2, 2, 310, 300, 72), (BF16, FP16)),
    ((2, 2, 193, 127, 80), (FP16,)),
    ((1, 2, 1000, 257, 88), (BF16,)),
    ((2, 2, 130, 390, 96), (FP16,)),
    ((2, 2, 310, 300, 104), (BF16,)),
    ((2, 4, 2048, 2048, 64), (BF16,)),
    ((2, 4, 2048, 2048, 80), (BF16,)),
    ((2, 4, 2048, 2048, 128), (BF16,)),
    ((1, 3, 4099, 4097, 64), (BF16,)),
    ((1, 3, 4097, 4099, 96), (BF16,)),
    ((1, 3, 4097, 4099, 128), (BF16,)),
]
CASES = parametrized(
    *([(*line, causal) for line in lines for causal in (True, False)] for lines in (CORE, MORE)),
    of_core=pytest.mark.numeric,
)
FORWARD_TILES = [
    (64, ForwardTiles(consumers=1, group=4)),
    (64, ForwardTiles(consumers=3, group=1)),
    (96, ForwardTiles(consumers=1, group=2)),
    (80, ForwardTiles(consumers=2, group=3)),
    (128, ForwardTiles(consumers=2, group=3)),
]


@on_gpu
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_error_is_at_most_twice_that_of_pytorch(case, dtype):
    check(case, dtype, "cuda", partial(function_results, GpuFlashAttention))


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("keys", INFINITE)
@pytest.mark.parametrize("d", [64, 80, 128])
def test_infinite_scores(d, keys, is_causal):
    assert not differences_where_scores_are_infinite(results, keys, is_causal, BF16, "cuda", d)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 300), (192, 129), (193, 127), (257, 1000), (700, 650)])
@pytest.mark.parametrize(("d", "tiles"), FORWARD_TILES, ids=str)
def test_forward_tiles(d, tiles, n_queries, n_keys, is_causal):
    """At lengths for which the defaults are others."""
    compute = partial(launch_results, launch, forward_tiles=tiles)
    check(dense((2, 3, n_queries, d), n_keys, is_causal), BF16, "cuda", compute)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("d", [64, 80, 128])
def test_backward_groups(d, group, is_causal):
    check(dense((2, 3, 650, d), 700, is_causal), BF16, "cuda", partial(launch_results, launch, group=group))


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
def test_scores_far_below_zero(d):
    """exp(0 - L) overflows, as a key beyond the end would have it."""
    for is_causal in (True, False):
        case = dense((1, 4, 200, d), 200, is_causal, factor=8.0)
        inputs = make_inputs(case, BF16, "cuda")
        inputs |= {"q": inputs["q"].abs(), "k": -inputs["k"].abs()}
        assert not excess(case, inputs, function_results(GpuFlashAttention, case, inputs))


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d"), [(100, 170, 64), (170, 100, 128), (90, 90, 40), (90, 170, 72), (170, 90, 80)]
)
def test_nothing_beyond_the_end_is_read(n_queries, n_keys, d, is_causal):
    case = dense((2, 3, n_queries, d), n_keys, is_causal)
    inputs = make_inputs(case, BF16, "cuda")
    surrounded = dict(inputs)
    for name in ("q", "k", "v", "do"):
        rows = inputs[name].shape[-2]
        larger = torch.full((2, 3, rows + 70, d + 8), torch.nan, device="cuda", dtype=BF16)
        larger[..., :rows, :d] = inputs[name]
        surrounded[name] = larger[..., :rows, :d]
    assert not excess(case, inputs, function_results(GpuFlashAttention, case, surrounded))


@on_gpu
def test_what_a_tensor_map_does_not_take_is_copied():
    """A start at no multiple of 16 bytes, rows that start at none, keys shared by all heads."""
    storage = torch.randn(2 * 3 * 150 * 67 + 1, device="cuda", dtype=BF16)
    odd_rows = storage[:-1].view(2, 3, 150, 67)[..., :64]
    odd_start = storage[1:].view(2, 3, 150, 67)[..., 3:]
    shared = torch.randn(2, 1, 150, 64, device="cuda", dtype=BF16).expand(2, 3, 150, 64)
    case = dense((2, 3, 150, 64), 150, True)
    inputs = make_inputs(case, BF16, "cuda") | {"q": odd_rows, "k": shared, "v": odd_start}
    assert not excess(case, inputs, function_results(GpuFlashAttention, case, inputs))


@on_gpu
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d"), [(515, 390, 64), (515, 390, 80), (390, 515, 128), (1024, 1024, 64)]
)
@pytest.mark.parametrize("window_left", [-1, 100], ids=["", "window"])
def test_a_hundred_runs_agree(n_queries, n_keys, d, window_left):
    """All but dQ to the bit: a race or a lost wait would show in some run, a deadlock as a timeout."""
    case = dense((4, 8, n_queries, d), n_keys, True, window_size=(window_left, -1))
    inputs = make_inputs(case, BF16, "cuda")
    first = launch_results(launch, case, inputs)
    for _ in range(100):
        for name, x in launch_results(launch, case, inputs).items():
            if name == "dq":
                assert (x.double() - first[name]).norm() <= 1e-2 * x.double().norm()
            else:
                assert torch.equal(x, first[name]), name


@on_gpu
@pytest.mark.parametrize("window_left", [-1, 200], ids=["", "window"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    ("lengths", "heads", "d"),
    [
        ([(1100, 1100)], 8, 64),
        ([(1100, 1300)], 8, 80),
        ([(700, 257)], 6, 96),
        ([(257, 700)], 6, 128),
        ([(700, 700)], 6, 128),
        ([(4100, 4100)], 40, 64),
        ([(4100, 4100)], 40, 128),
        ([(64, 64)], 2, 64),
        ([(1, 300)], 2, 128),
        ([(300, 300), (1, 1), (1100, 900), (0, 70), (257, 700)], 8, 64),
        ([(300, 300), (1, 1), (1100, 900), (0, 70), (257, 700)], 8, 128),
    ],
)
def test_twenty_deterministic_runs_agree(lengths, heads, d, is_causal, window_left):
    """While other kernels take SMs away; 40 heads of 4100 keys need ten times as many programs as there are SMs."""
    if window_left >= 0 and not is_causal:
        pytest.skip("the Triton kernels have windows without a causal mask")
    case = Case(tuple(lengths), d, heads, heads // 2, is_causal, (window_left, -1), deterministic=True)
    case = replace(case, batch=(1,), packed=len(lengths) > 1)
    inputs = make_inputs(case, BF16, "cuda")
    first = launch_results(launch, case, inputs)
    assert heads == 40 or not excess(case, inputs, first)
    load, stream = torch.randn(2048, 2048, device="cuda", dtype=BF16), torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            for _ in range(10):
                load @ load
        again = launch_results(launch, case, inputs)
        assert all(torch.equal(first[name], again[name]) for name in first)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("d", "d_v"), [(64, 64), (128, 128), (72, 72), (40, 64), (96, 64), (64, 128)])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=str)
def test_shared_heads_scale_width_of_values_and_the_gradient_of_l(heads, d, d_v, is_causal):
    options = {"kv_heads": heads[1], "d_v": d_v, "scale": 0.15, "uses_lse": True}
    check(dense((2, heads[0], 333, d), 300, is_causal, **options), BF16, "cuda")


SEQUENCES = [(1, 1), (64, 64), (193, 193), (1001, 1001), (700, 257), (257, 700)]
WINDOWS = [0, 1, 63, 64, 129, 300]
DOCUMENTS = [  # queries and keys of each; tokens after the last
    ([(193, 193), (1, 1), (700, 700), (64, 64), (128, 128)], 0),
    ([(0, 0), (300, 0), (0, 300), (66, 513), (513, 66), (0, 0)], 70),
    ([(129, 129), *[(3, 3)] * 40, (1001, 1001)], 1),
]
CAPS = [(0.5, -1, BF16), (2.0, 100, BF16), (30.0, -1, FP16)]
"""Caps that change all scores and few, and a window; the second is combined with sinks."""
WITH_OPTIONS = [
    *(
        (Case((lengths,), d, 4, 2, True, (window, -1), has_sinks=window % 2 == 1), BF16)
        for lengths, d, window in itertools.product(SEQUENCES, (64, 80, 128), WINDOWS)
    ),
    *(
        (Case(((1001, 700),), d, 4, 2, is_causal, has_sinks=True), FP16)
        for d, is_causal in itertools.product((40, 64, 96, 128), (True, False))
    ),
    *(
        (Case(tuple(lengths), d, 4, 2, is_causal, packed=True, extra=extra), BF16)
        for (lengths, extra), d, is_causal in itertools.product(DOCUMENTS, (64, 80, 96, 128), (True, False))
    ),
    *(
        (Case(tuple(lengths), d, 4, 1, True, (150, -1), 2.0, True, True, extra, deterministic=True), FP16)
        for (lengths, extra), d in itertools.product(DOCUMENTS, (64, 72, 128))
    ),
    *(
        (Case((lengths,), d, 4, 2, is_causal, (window if is_causal else -1, -1), softcap, softcap == 2.0), dtype)
        for lengths, d, is_causal, (softcap, window, dtype) in itertools.product(
            [(193, 193), (1001, 700), (257, 700)], (64, 80, 128), (True, False), CAPS
        )
    ),
]


@on_gpu
@pytest.mark.parametrize(("case", "dtype"), WITH_OPTIONS)
def test_error_with_options(case, dtype):
    check(case, dtype, "cuda", partial(launch_results, launch))


@on_gpu
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_options_reach_these_kernels(monkeypatch, packed):
    """Forward and backward, but for windows without a causal mask."""
    case = Case(((700, 700),), 64, 4, 2, True, (100, -1), 2.0, has_sinks=True, deterministic=True, packed=packed)
    inputs = make_inputs(case, BF16, "cuda")
    monkeypatch.setattr(triton_launch, "attention_forward", None)
    with pytest.raises(TypeError):
        results(replace(case, is_causal=False), inputs)
    monkeypatch.setattr(triton_launch, "attention_backward", None)
    assert not excess(case, inputs, results(case, inputs))


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
@pytest.mark.parametrize("tiles", [None, 1, 2, 3])
def test_tiles_of_windows(tiles, d):
    """Each number of warpgroups per program, at lengths for which the defaults are others."""
    if (tiles, d) in ((1, 128), (3, 128), (3, 80)):
        pytest.skip("they do not fit")
    chosen = tiles and ForwardTiles(consumers=tiles, group=3)
    compute = partial(launch_results, launch, forward_tiles=chosen)
    check(dense((2, 3, 1100, d), 1100, True, window_size=(200, -1)), BF16, "cuda", compute)


# What can be seen without a GPU.


# batch, heads, tokens, d: as timed on an H200, or bound by the host
FASTER = [(8, 32, 1024, 64), (4, 32, 1024, 80), (4, 32, 2048, 64), (1, 16, 16384, 128), (1, 4, 8192, 64)]
FASTER += [(1, 8, 4096, 128), (1, 1, 32768, 64), (16, 32, 512, 128)]
NOT_FASTER = [(1, 16, 512, 64), (1, 16, 1024, 128), (1, 16, 2048, 64), (1, 1, 8192, 128), (1, 1, 16384, 64)]
NOT_FASTER += [(4, 32, 1024, 64), (2, 32, 1024, 128), (4, 32, 512, 64), (32, 32, 256, 128), (4, 32, 4096, 32)]


PACKED = {(1, 16, 4096, 64): True, (1, 16, 65536, 128): True, (1, 4, 4096, 64): False, (1, 16, 4096, 32): False}


@pytest.mark.parametrize(
    ("shape", "packed", "faster"),
    [(x, False, True) for x in FASTER]
    + [(x, False, False) for x in NOT_FASTER]
    + [(x, True, faster) for x, faster in PACKED.items()],
)
def test_they_are_chosen_where_they_were_faster(shape, packed, faster):
    assert is_faster(torch.Size(shape), torch.Size(shape), packed) == faster


def test_an_untested_triton_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(gpu_attention, "chip_of", lambda _: chip.H200)
    monkeypatch.setattr(gpu_attention, "TESTED_TRITON", ("3.6", "2.0"))
    monkeypatch.setattr(triton, "__version__", "9.9.0")
    shape = torch.Size((8, 32, 1024, 64))
    with pytest.warns(UserWarning, match=r"tested with Triton 3\.6 to 2\.0, not with 9\.9\.0") as warned:
        assert "Triton 9.9.0" in [gpu_attention.hopper_obstacle(0, BF16, shape, shape) for _ in range(2)][1]
    assert len(warned) == 1


WIDTHS = ((64, (1, 3)), (80, (1, 2)), (96, (1, 2)), (128, (2,)))  # d, consumers in the forward pass


def launches() -> dict[str, tuple[Launch, Variant]]:
    """Launches of each kernel, and options: causal, bf16, a length that no tile divides, key heads shared or not."""
    result = {}
    causal = Options(is_causal=True)
    with_all = Variant(Options(True, window_left=300, softcap=30.0), torch.float32)
    for (d, kinds), (kv_heads, shared) in itertools.product(WIDTHS, ((3, ""), (1, ", shared"))):
        shape, k_shape = torch.Size((1, 3, 1000, d)), torch.Size((1, kv_heads, 1000, d))
        strides = (torch.empty(shape, device="meta").stride(),) * 8
        problem = BF16, shape, k_shape, strides
        forward = {f"{each} consumers{shared}": (each, Variant(causal)) for each in kinds}
        backward = {shared: Variant(causal)}
        if not shared:
            forward["window, softcap, sinks"] = kinds[-1], with_all
            forward["documents"] = kinds[-1], Variant(causal, documents=3)
            backward[", window"] = Variant(causal._replace(window_left=300))
            backward[", softcap, deterministic"] = Variant(causal._replace(softcap=30.0, deterministic=True))
            backward[", documents"] = Variant(causal, documents=3)
        for name, (consumers, variant) in forward.items():
            tiles = ForwardTiles(consumers=consumers, group=2)
            each = launch._forward_launch(tiles, variant, *problem[:3], strides[:4])
            result[f"forward, d {d}, {name}"] = each, variant
        for name, variant in backward.items():
            result[f"backward, d {d}{name}"] = launch._backward_launches(None, variant, *problem, False).main, variant
    return result


def source(each: Launch, variant: Variant) -> GluonASTSource:
    """The source that Triton compiles for a launch with these options."""
    names = each.kernel.arg_names
    pointers = len(names) - len(each.descriptors) - len(each.rest)
    numbers = ["constexpr" if x is None else "fp32" if isinstance(x, float) else "i32" for x in each.rest]
    absent = {"sinks": variant.sinks, "added": variant.options.deterministic or None}
    absent |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), variant.documents)
    absent = {name for name, value in absent.items() if value is None}
    bounds = ("added", "cu_seqlens_q", "cu_seqlens_k")
    pointers = ["*i32" if name in bounds else "*fp32" for name in names[len(each.descriptors) :][:pointers]]
    types = [*map(descriptor_type, each.descriptors), *pointers, *numbers]
    arguments = zip(names[::-1], each.rest[::-1], each.kernel.params[::-1], strict=False)
    constants = {name: value for name, value, parameter in arguments if parameter.is_constexpr or value is None}
    constants |= dict.fromkeys(absent & set(names))
    signature = {name: "constexpr" if name in constants else kind for name, kind in zip(names, types, strict=True)}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types) if kind[0] == "*"}
    return GluonASTSource(each.kernel, signature, constants, aligned)


def descriptor_type(make) -> str:
    """The type of a descriptor, from the arguments of its maker."""
    block, layout = make.keywords["block_shape"], make.keywords["layout"]
    dtype = "fp32" if layout.element_bitwidth == 32 else "bf16"
    return f"tensordesc<{dtype}[{', '.join(map(str, block))}],{layout!r}>"


@pytest.mark.parametrize("name", launches())
def test_kernels_are_valid_gluon(name):
    each, variant = launches()[name]
    backend = make_backend(HOPPER)
    options = backend.parse_options(each.options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source(each, variant).make_ir(HOPPER, options, functions, backend.get_module_map(), context)
    assert module.verify()


@pytest.mark.parametrize(
    ("name", "products", "saved", "reloaded"),
    [
        ("backward, d 64", 16, 40, 0),
        pytest.param("backward, d 64, shared", 16, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 64, window", 16, 72, 6, marks=pytest.mark.slow),
        pytest.param("backward, d 64, softcap, deterministic", 16, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 64, documents", 16, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 80", 26, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 96", 28, 64, 1, marks=pytest.mark.slow),
    ],
)
def test_products_of_the_kernels_with_the_fewest_free_registers_stay_asynchronous(
    tmp_path, name, products, saved, reloaded
):
    """Elsewhere ptxas would wait for each product at once, ignore the registers asked for, or spill in the main loops.

    Some bytes are what warpgroups save around all their work, and in the few steps that need a mask; in the others one
    register may be reloaded, and with a window at d 64 six are saved or reloaded in 355 instructions.
    """
    each, variant = launches()[name]
    compiled = compile_kernel(source(each, variant), target=HOPPER, options=each.options)
    assert compiled.metadata.shared <= 227 * 1024
    cubin = tmp_path / "kernel.cubin"
    command = [get_ptxas(90).path, "-arch=sm_90a", "-v", "-o", str(cubin), "-"]
    log = subprocess.run(command, input=compiled.asm["ptx"], capture_output=True, text=True, check=True).stderr
    assert not re.search(r"C75\d\d", log), log
    assert int(re.search(r"(\d+) bytes spill stores", log)[1]) <= saved, log
    command = [knobs.nvidia.nvdisasm.path, "-c", str(cubin)]
    loops = innermost_loops(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Of each of the two warpgroups for dK and dV: one with a mask, which is longer, and one without.
    main = sorted((loop for loop in loops if loop.count("HGMMA") == products), key=len)[:2]
    assert len(main) == 2
    assert all(len(re.findall(r"\b(STL|LDL)\b", loop)) <= reloaded for loop in main)


def innermost_loops(assembly: str) -> list[str]:
    """The instructions of each loop that has no other in it."""
    lines = assembly.splitlines()
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if line.startswith(".L_x_")}
    jumps = [(re.search(r"BRA.*`\((\.L_x_\d+)\)", line), i) for i, line in enumerate(lines)]
    loops = [(labels[jump[1]], end) for jump, end in jumps if jump and labels[jump[1]] < end]
    inner = [loop for loop in loops if not any(loop != x and loop[0] <= x[0] and x[1] <= loop[1] for x in loops)]
    return ["\n".join(lines[start:end]) for start, end in inner]
