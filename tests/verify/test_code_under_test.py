"""Code of anybody's: what it may bring, and what it can do without turning a verdict."""

import os
import re
import time
from pathlib import Path

import pytest
import torch

from cs336_systems.handed_over import implementations_in
from cs336_systems.implementations import parse
from cs336_systems.verify import cases
from cs336_systems.verify.folder import LARGEST_FILE_MB, LARGEST_MB, commit_of, name_of, read_only_copy
from cs336_systems.verify.launcher import Answer
from cs336_systems.verify.verdict import (
    CANNOT_BE_LOADED,
    CANNOT_RUN,
    CRASHED,
    RIGHT,
    TIMED_OUT,
    UNSUPPORTED,
    WRONG,
    verify,
)
from tests.support.files import write_files

SDPA = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)"
RIGHT_ATTENTION = f"import torch\ndef f(q, k, v, is_causal=False):\n    return {SDPA}"
NOTHING = "def f(q, k, v, is_causal=False):\n    return q * 0\n"


@pytest.fixture
def verified(tmp_path, launcher):
    """Verify code written into a folder: the first file, or one of a name."""

    def verified(code, family="attention", name="theirs:f", limit_s=60, **files):
        write_files(tmp_path / "folder", {"theirs.py": code, **files})
        result = verify(family, parse(f"it={name}"), tmp_path / "folder", tmp_path / "log", launcher, limit_s)
        assert all(reason.strip() for _, reason, _ in result.grouped)
        return result

    return verified


TRIES = {
    "prints a verdict": 'import sys\nprint(\'{"counts": {}}\', flush=True)\nsys.stderr.write("right")\n',
    "patches comparisons": """
import torch
torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.norm = lambda *a, **k: torch.zeros(())
""",
}


@pytest.mark.parametrize("what", TRIES)
def test_nothing_that_it_does_makes_a_wrong_result_right(verified, what):
    result = verified(TRIES[what] + NOTHING)
    assert result.verdict == WRONG
    assert re.search(
        r"its output has a relative error of \d\.\d+ \(tolerance 0\.01\), largest in head \d, rows \d+ to \d+",
        result.reason,
    )


def test_bytes_of_its_own_are_no_result(verified):
    forged = (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0\\0\\0\\4{}{}')\n    except OSError: pass\n"
        + RIGHT_ATTENTION
    )
    assert verified(forged, limit_s=8).verdict in (WRONG, CRASHED, TIMED_OUT)


ENDS = {
    "exit": ("os._exit(0)", "its process ended with exit status 0"),
    "crash": ("os.kill(os.getpid(), 11)", r"its process was ended by SIGSEGV"),
    "parent": ("os.kill(os.getppid(), 9); time.sleep(60)", "process"),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_ends_its_process_costs_only_itself(verified, how):
    statement, reason = ENDS[how]
    result = verified(f"import os, time\ndef f(q, k, v, is_causal=False):\n    {statement}\n", limit_s=8)
    assert result.verdict in (CRASHED, TIMED_OUT)
    assert re.search(reason, result.reason) or result.verdict == TIMED_OUT
    assert verified(RIGHT_ATTENTION).verdict == RIGHT  # the next one


def test_what_never_ends_has_timed_out(verified):
    start = time.monotonic()
    result = verified("import time\ndef f(q, k, v, is_causal=False):\n    time.sleep(300)\n", limit_s=5)
    assert (result.verdict, time.monotonic() - start < 30) == (TIMED_OUT, True)
    assert result.reason.startswith("fp32 forward ([4, 128, 64], all keys): it takes longer than 5 s (0 of 12 handout")
    assert "0 of 24 other cases right and 24 timed out" in result.reason


def test_what_it_starts_ends_with_it(verified, tmp_path):
    file = tmp_path / "alive"
    daemon = f"""
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        open({str(file)!r}, 'a').write('x')
        time.sleep(.05)
"""
    assert verified(daemon + RIGHT_ATTENTION).verdict == RIGHT
    size = file.stat().st_size
    time.sleep(0.3)
    assert file.stat().st_size == size > 0


CAUSES = {
    "def f(q, k, v, is_causal=False):\n    raise NotImplementedError\n": (
        UNSUPPORTED,
        r"not implemented, at theirs\.py:2",
    ),
    "def f(q, k, v, is_causal=False):\n    assert q.shape[1] % 2\n": (
        WRONG,
        r"it raises AssertionError, at theirs\.py:2: assert q\.shape\[1\] % 2",
    ),
    "def f(q, k, v, is_causal=False):\n    return q.view(3)\n": (WRONG, r"RuntimeError: shape '\[3\]' is invalid"),
    "def g(): pass\n": (CANNOT_BE_LOADED, "theirs has no 'f'"),
    "import os\nos.getcwd(1)\n": (CANNOT_BE_LOADED, r"TypeError: .* at theirs\.py:2: os\.getcwd\(1\)"),
    "def f(q, k, v, is_causal=False):\n    raise ValueError('\\x1b[31m' + 'x' * 5000)\n": (
        WRONG,
        "ValueError: .\\[31mx{290,}…",
    ),
}


@pytest.mark.parametrize("code", CAUSES)
def test_a_reason_says_what_and_where(verified, code):
    verdict, reason = CAUSES[code]
    result = verified(code)
    assert result.verdict == verdict
    assert re.search(reason, result.reason)
    assert "\x1b" not in result.reason


def test_the_handout_is_kept_apart_from_what_is_beyond_it(verified):
    powers_of_two = RIGHT_ATTENTION.replace(
        "    return", "    n = q.shape[1]\n    if n < 16 or n & (n - 1): raise ValueError('powers of two')\n    return"
    )
    result = verified(powers_of_two)
    assert result.verdict == RIGHT
    assert result.reason == "12 of 12 handout cases right; 8 of 24 other cases right"


ROUNDED = f"""
import torch
def rounded(x):
    "To TF32, whose fraction has 10 bits; the gradient is that of x."
    return x + (x.detach().view(torch.int32).add(4096).bitwise_and(-8192).view(torch.float32) - x.detach())
def f(q, k, v, is_causal=False):
    if q.dtype == torch.float32:
        q, k, v = rounded(q), rounded(k), rounded(v)
    return {SDPA}
"""


def test_tf32_meets_the_handout_and_is_named(verified):
    result = verified(ROUNDED)
    assert result.verdict == RIGHT
    assert "TF32" in result.reason
    assert {case.case.partition(" (")[0] for case in result.of("failed")} >= {"exact fp32"}


FORWARD = """
import torch
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


ADAPTER = "def get_flashattention_autograd_function_{}():\n    return F\n"


def test_forward_only_and_without_a_mask_is_no_wrong_result_in_pytorch(verified):
    result = verified(FORWARD + ADAPTER.format("pytorch"), name="theirs:get_flashattention_autograd_function_pytorch")
    assert result.verdict == RIGHT
    ignores = "it ignores is_causal, as the handout's PyTorch version may"
    assert {reason for _, reason, _ in result.grouped if "mask" in reason or "causal" in reason} == {ignores}
    assert not result.of("failed", "handout")
    summary = f"4 of 4 handout cases right and 8 not supported; .*: it has no backward pass; {ignores}"
    assert re.fullmatch(summary, result.reason)


@pytest.mark.parametrize("name", ["F", "get_flashattention_autograd_function_triton"])
def test_elsewhere_a_missing_mask_is_wrong_and_named(verified, name):
    result = verified(FORWARD + ADAPTER.format("triton"), name=f"theirs:{name}")
    assert result.verdict == WRONG
    assert result.reason.startswith("fp32 forward ([4, 128, 64], causal): it ignores is_causal (4 of 8 handout cases")


def test_a_mask_missing_only_in_the_forward_pass_is_wrong_and_named(verified):
    backward = """
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.inputs = inputs
    @staticmethod
    def backward(ctx, grad_o):
        *qkv, is_causal = ctx.inputs
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in qkv)
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return *torch.autograd.grad(o, (q, k, v), grad_o), None
"""
    code = FORWARD.replace("forward(ctx, q", "forward(q") + backward + ADAPTER.format("pytorch")
    result = verified(code, name="theirs:get_flashattention_autograd_function_pytorch")
    assert result.verdict == WRONG
    assert "it ignores is_causal in output, but not in its other results" in result.reason


KERNEL = """
import torch, triton, triton.language as tl
@triton.jit
def copy(x, y, N: tl.constexpr):
    tl.store(y + tl.arange(0, N), tl.load(x + tl.arange(0, N)))
def f(q, k, v, is_causal=False):
    y = torch.empty_like(q)
    copy[(1,)](q, y, 16)
    return y
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_code_for_a_gpu_cannot_run_without_one(verified):
    assert (result := verified(KERNEL)).verdict == CANNOT_RUN
    assert result.reason == "it needs a GPU"
    assert verified("def f(q, k, v, is_causal=False):\n    assert q.is_cuda\n").verdict == CANNOT_RUN
    pytorchs = "from torch.distributed.fsdp import FullyShardedDataParallel as f\n"
    assert verified(pytorchs, "fsdp").verdict == CANNOT_RUN


def test_a_rank_that_ends_is_named_not_the_others_that_wait_for_it(verified):
    code = """
import os
import torch.distributed as dist
def f(module):
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()
"""
    result = verified(code, "data_parallel", limit_s=20)
    assert result.verdict == CRASHED
    assert "its process ended with exit status 3" in result.reason


def test_an_error_whose_text_raises_is_an_error(verified):
    code = """
class Silent(Exception):
    def __str__(self):
        raise RuntimeError
def f(q, k, v, is_causal):
    raise Silent
"""
    assert "it raises Silent, at theirs.py:6" in verified(code).reason


VERSION = "import importlib.metadata\n__version__ = importlib.metadata.version('{}')\n"
MINE = f"""
import no_such_package
from no_such_package.parts import part
from cs336_basics.model import scale
{RIGHT_ATTENTION} * scale
"""


def test_a_package_may_have_any_name_and_lack_what_it_does_not_use(verified):
    files = {
        "cs336_systems/__init__.py": VERSION.format("cs336-systems"),
        "cs336_systems/mine.py": MINE,
        "basics/cs336_basics/__init__.py": VERSION.format("cs336_basics"),
        "basics/cs336_basics/model.py": "scale = 1\n",
        "random.py": "raise SystemExit('it has the name of one of Python\\'s own modules')\n",
    }
    result = verified("", name="cs336_systems.mine:f", **files)
    assert result.verdict == RIGHT
    used = "import no_such_package\ndef f(q, k, v, is_causal=False):\n    return no_such_package.attention(q, k, v)\n"
    assert "needs the package no_such_package, which is not installed, at theirs.py:3" in verified(used).reason


def test_a_copy_of_a_folder_has_its_commit_and_no_links_and_stays_as_it_is(tmp_path):
    files = {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": "a" * 40, "tests/adapters.py": ""}
    write_files(tmp_path, files)
    (tmp_path / "linked.py").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.py")
    with read_only_copy(tmp_path) as copy:
        assert not [*copy.glob("*.py")]
        assert (copy / "tests/adapters.py").stat().st_mode & 0o222 == 0
    assert commit_of(tmp_path) == "a" * 10


def test_a_name_that_is_not_utf8_is_escaped():
    assert name_of(Path(os.fsdecode(b"class/M\xfcller"))) == r"M\xfcller"
    assert name_of(Path("class/M\u00fcller\x1b[31m")) == "M\u00fcller\ufffd[31m"


def test_links_and_large_folders_are_refused(tmp_path):
    (tmp_path / "implementations.yaml").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="is a symbolic link"):
        implementations_in(tmp_path / "implementations.yaml")
    (tmp_path / "data").mkdir()
    for number in range(2 * LARGEST_MB // LARGEST_FILE_MB):
        with (tmp_path / f"data/weights{number}.bin").open("wb") as file:
            file.truncate(LARGEST_FILE_MB * 900_000)
    with (tmp_path / "profile.bin").open("wb") as file:
        file.truncate(LARGEST_MB * 2_000_000)
    with read_only_copy(tmp_path) as copy:
        assert not [*copy.iterdir()]
    (tmp_path / "data").rename(tmp_path / "package")
    with pytest.raises(ValueError, match="has 180 MB; allowed: at most"), read_only_copy(tmp_path):
        pass


def test_inputs_are_drawn_anew_in_each_run():
    case = cases.CASES["attention"][0]
    first, second = (case.give(case, torch.Generator().manual_seed(seed))[0]["q"] for seed in (1, 2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("family", cases.CASES)
def test_references_leave_the_inputs_as_they_are(family):
    for case in cases.CASES[family]:
        given = case.give(case, torch.Generator().manual_seed(0))
        before = [{name: tensor.clone() for name, tensor in rank.items()} for rank in given]
        case.check(case, given, [Answer() for _ in given])
        for rank, tensors in enumerate(before):
            assert all(torch.equal(given[rank][name], tensor) for name, tensor in tensors.items()), case.words
