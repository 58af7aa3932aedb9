"""The Triton kernels of attention through Triton's interpreter, which must be chosen before kernels are defined.

So this file, run as a script, computes all cases in a process of its own. Tiles come from the tables, or are what the
tables give larger problems, which an interpreter cannot compute.
"""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from tests.attention.cases import (
    INFINITE,
    dense,
    differences_where_scores_are_infinite,
    excess,
    function_results,
    launch_results,
    make_inputs,
)
from tests.attention.test_attention import VARIANTS
from tests.attention.test_options import CASES
from tests.support.interpreter import interpreter_environment

pytestmark = pytest.mark.timeout(900)  # The first test waits for all cases.
FP16, FP32 = torch.float16, torch.float32
OF_FUNCTION = {
    "default": (dense((2, 1, 70, 24), 45, True), FP32),
    "all keys": (dense((1, 1, 33, 16), 80, False), FP16),
    "one query": (dense((1, 1, 1, 16), 40, True), FP32),
    "one key": (dense((1, 1, 40, 16), 1, False), FP32),
    "preprocess": (dense((1, 2, 150, 16), 70, True), FP16),
    "descriptors": (dense((2, 1, 130, 16), 150, True), FP16),
    "descriptors, all keys": (dense((2, 1, 70, 32), 130, False), FP32),
    "large scores": (dense((2, 1, 100, 32), 70, True, factor=8.0), FP32),
    "strided, heads in groups": (dense((2, 3, 40, 16), 40, True), FP32),
}
"""Cases of the autograd function, and their dtypes."""
GROUPS = dense((2, 4, 33, 24), 40, False, kv_heads=2, uses_lse=True)
OF_LAUNCHES = {
    "scale": dataclasses.replace(VARIANTS["scale"], uses_lse=True, is_causal=True),
    "groups": dataclasses.replace(GROUPS, is_causal=True),
    "descriptors, groups": GROUPS,
    **{name: dataclasses.replace(case, batch=(1,)) for name, case in CASES.items()},
    # Unlike a GPU, the interpreter supports only some starts of documents.
    **{f"descriptors, {name}": CASES[name] for name in ("packed, multiples of four", "window to the left")},
}
"""Cases of the launches, in fp32, with options."""
SECOND = "second derivative"
NAMES = [*OF_FUNCTION, *OF_LAUNCHES, *INFINITE, SECOND]
FEW = {
    *("default", "preprocess", "first keys", "descriptors, all keys", "groups", SECOND),
    *("window to the left", "queries without keys", "softcap", "packed, other keys"),
    "descriptors, packed, multiples of four",
}
"""With a mask and without, with pointers and descriptors, with and without preprocessing, with heads in groups."""


def problems(name: str) -> object:
    """The error in the results of a case; empty if they are right."""
    from cs336_systems.attention import triton_launch
    from cs336_systems.attention.triton_attention import TritonFlashAttention

    if name in OF_FUNCTION:
        case, dtype = OF_FUNCTION[name]
        inputs = make_inputs(case, dtype)
        if name.startswith("strided"):
            inputs = {x: y.transpose(1, -2).contiguous().transpose(1, -2) for x, y in inputs.items() if y.dim() == 4}
            inputs |= {"do": torch.ones(()).expand(inputs["q"].shape)}  # the gradient of a sum
            inputs |= {"dlse": torch.zeros(inputs["q"].shape[:-1])}
        return excess(case, inputs, function_results(TritonFlashAttention, case, inputs))
    if name in OF_LAUNCHES:
        case = OF_LAUNCHES[name]
        inputs = make_inputs(case, FP32)
        return excess(case, inputs, launch_results(triton_launch, case, inputs))
    if name in INFINITE:
        compute = lambda case, inputs: launch_results(triton_launch, case, inputs)  # noqa: E731
        return differences_where_scores_are_infinite(compute, name, True, FP32)
    q = torch.randn(2, 9, 16, requires_grad=True)
    o = TritonFlashAttention.apply(q, q, q, True)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    try:
        (o.sum() + dq.square().sum()).backward()
    except NotImplementedError as error:
        return "" if "flash_attention cannot" in str(error) else str(error)
    return "a second derivative"


def compute_all(names: list[str]) -> None:
    """Print one JSON object with the problems of each case."""
    from cs336_systems.attention import triton_launch
    from cs336_systems.attention.tile_config import BackwardTiles, ForwardTiles

    torch.set_num_threads(1)
    default, options = triton_launch.default_tiles, {"num_warps": 4, "num_stages": 2, "descriptors": True}
    forward = ForwardTiles(block_m=64, block_n=64, **options)
    backward = BackwardTiles(block_outer=64, block_inner=64, preprocess=True, **options)
    pointers = dataclasses.replace(backward, block_inner=32, descriptors=False)
    many_queries = {
        "descriptors": lambda *_: (forward, backward),
        "preprocess": lambda *problem: (default(*problem)[0], pointers),
        "strided": lambda *problem: [dataclasses.replace(tiles, group=4) for tiles in default(*problem)],
    }
    report = {}
    for name in names:
        triton_launch.default_tiles = many_queries.get(name.partition(",")[0], default)
        report[name] = problems(name)
    print(json.dumps(report))


@pytest.fixture(scope="module")
def interpreted(request) -> dict[str, object]:
    names = [test.callspec.params["name"] for test in request.session.items if "interpreted" in test.fixturenames]
    command = [sys.executable, "-m", __name__, *names]
    run = subprocess.run(command, env=interpreter_environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in NAMES])
def test_kernels_interpreted(interpreted, name):
    assert not interpreted[name]


if __name__ == "__main__":
    compute_all(sys.argv[1:])
