"""SMs that FP8 matmuls of a backward pass leave to the updates that run at the same time.

On Hopper these matmuls are persistent: one occupies every SM until it ends. Updates on another stream then run mostly
between matmuls, and compete with memory-bound kernels. A few SMs suffice for them.
"""

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from cs336_systems.nvidia import compute_capability

HOPPER = (9, 0)
MOST = 16
"""SMs that are left at most. Measured with 4096 tokens on an H100: 8 and 24 gain a little less, 32 gain nothing."""
SMS_TIMES_TOKENS = MOST * 4096
"""More tokens leave fewer SMs, since the same updates have more time."""

updating: set[torch.device] = set()

warnings.filterwarnings("ignore", "Setting the SM carveout for matmuls")


def leave_sms(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """Make FP8 matmuls of [tokens, ...] leave SMs to the updates, if any run on its device."""
    if torch.compiler.is_compiling() or x.device not in updating or compute_capability(x.device) != HOPPER:
        return contextlib.nullcontext()
    sms = min(MOST, SMS_TIMES_TOKENS // len(x))
    chosen = torch._C._get_sm_carveout_experimental()  # by the caller, or for another device
    return _carveout(sms) if sms and chosen is None else contextlib.nullcontext()


@contextlib.contextmanager
def _carveout(sms: int) -> Iterator[None]:
    torch._C._set_sm_carveout_experimental(sms)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(None)
