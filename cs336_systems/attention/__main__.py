"""Print which attention kernels run on this machine and, with --test, compare them with float64.

Launch: python -m cs336_systems.attention --test
"""

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor

from cs336_systems.attention import flash_attention, plain_attention
from cs336_systems.attention.chip import HAS_TRITON, kernel_obstacle

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEAD_DIMS = (16, 32, 64, 80, 128, 256)
GPU_SHAPE, CPU_SHAPE = (16, 4099), (2, 131)
"""Heads and tokens: on a GPU enough for the Hopper kernels to run; a prime number of tokens, which no tile divides."""
TIMES_PLAIN = 2
"""Maximum error relative to plain attention's in the same dtype, as in FlashAttention's own tests."""
SMALLEST_ERROR = 1e-6
"""Relative error below which differences are rounding noise."""


def main() -> None:
    """Print the machine, a table of kernels, and, if requested, their errors."""
    parser = argparse.ArgumentParser(prog="cs336-systems attention", description=__doc__)
    parser.add_argument("--test", action="store_true", help="compare output and gradients with float64")
    test = parser.parse_args().test
    on_gpu = torch.cuda.is_available()
    print(f"{torch.cuda.get_device_name() if on_gpu else 'no CUDA device'}, {versions()}")
    heads, tokens = GPU_SHAPE if on_gpu else CPU_SHAPE
    print(f"Causal, {heads} heads of {tokens} tokens, forward and backward:")
    passed = True
    for dtype in DTYPES:
        for d in HEAD_DIMS:
            line = f"{str(dtype).removeprefix('torch.'):8}  d = {d:3}  {kernels(dtype, (1, heads, tokens, d))}"
            if test:
                ours, limit = errors(dtype, (1, heads, tokens, d), "cuda" if on_gpu else "cpu")
                right = ours <= limit
                passed &= right
                line += f"; {'right' if right else 'WRONG'}: error {ours:.1e}, allowed {limit:.1e}"
            print(line, flush=True)
    if on_gpu:
        print("With PyTorch's deterministic algorithms, Triton's backward pass runs.")
    sys.exit(not passed)


def versions() -> str:
    """PyTorch's version and, if it is installed, Triton's."""
    packages = ["torch", *(["triton"] if find_spec("triton") else [])]
    return ", ".join(f"{package} {version(package)}" for package in packages)


def kernels(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Name the kernels that run forward and backward for this dtype and shape, and why the Hopper kernels do not."""
    if not torch.cuda.is_available():
        return "tiled PyTorch: no CUDA device"
    if obstacle := kernel_obstacle(torch.device("cuda")):
        return f"{'SDPA' if HAS_TRITON else 'tiled PyTorch'}: {obstacle}"
    from cs336_systems.attention.gpu_attention import hopper_obstacle

    obstacle = hopper_obstacle(torch.cuda.current_device(), dtype, torch.Size(shape), torch.Size(shape))
    return f"Triton, not Hopper's kernels: {obstacle}" if obstacle else "Hopper's kernels (Gluon)"


def errors(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> tuple[float, float]:
    """The largest relative error of the output and the three gradients, and the largest allowed one.

    Errors are ‖x - reference‖ / ‖reference‖ over all heads, against plain attention in float64, head by head.
    """
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype, device=device) for _ in range(4)]
    ours = results(flash_attention, inputs)
    allowed = SMALLEST_ERROR
    worst = 0.0
    plain, exact = [], []
    for head in range(shape[1]):
        of_head = [x[:, head : head + 1] for x in inputs]
        plain.append(results(plain_attention, of_head))
        exact.append(results(plain_attention, [x.double() for x in of_head]))
    for mine, theirs, reference in zip(ours, joined(plain), joined(exact), strict=True):
        worst = max(worst, relative_error(mine, reference))
        allowed = max(allowed, TIMES_PLAIN * relative_error(theirs, reference))
    return worst, allowed


def results(attention: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Compute the output, and the gradients of q, k and v; the last input is the gradient of the output."""
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    o = attention(q, k, v, is_causal=True)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), inputs[3])]


def joined(of_heads: list[list[Tensor]]) -> list[Tensor]:
    """Concatenate the results of all heads."""
    return [torch.cat(parts, 1) for parts in zip(*of_heads, strict=True)]


def relative_error(x: Tensor, reference: Tensor) -> float:
    """‖x - reference‖ / ‖reference‖."""
    return float((x.double() - reference).norm() / reference.norm())


if __name__ == "__main__":
    main()
