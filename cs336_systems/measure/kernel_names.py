"""Categories and short names of kernels. No torch here.

Kernel names indicate, more or less, what they compute: cuBLAS has its own naming schemes, PyTorch uses C++ templates,
Inductor lists the operators that it fused.
"""

import re

CATEGORIES = (
    "matmul",
    "attention",
    "softmax",
    "elementwise",
    "reduction",
    "normalization",
    "copy",
    "optimizer",
    "communication",
    "other",
)
"""Categories of kernels. attention: matmuls and softmax of attention in one kernel. softmax: also the loss's.
normalization: all kernels of a norm. copy: also casts, concatenations and fills. optimizer: all its kernels."""
LONGEST_NAME = 80

NO_PRODUCTS = re.compile(r"splitKreduce|aten::(linear|matmul)$")
"""Matmul kernels and operators that compute no matmul themselves: splitKreduce adds up the parts of a split matmul of
cuBLAS, and linear calls mm."""

# Patterns of full names in lower case.
ATTENTION = re.compile(r"flash|fmha|attention|sdpa|^(forward|backward|preprocess)_kernel$")
MATMUL = re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|triton_tem_fused|::dot_kernel")
MATMUL_OPERATORS = re.compile(r"aten::(mm|bmm|addmm|baddbmm|addmv|mv|dot|_scaled_mm|mkldnn_linear|linear)(_out)?$")
SOFTMAX = re.compile(r"softmax|cross_entropy_kernel")
NORMALIZATION = re.compile(
    r"layer_?norm|rms_?norm|batch_?norm|triton_(red|per).*(rsqrt|mean|pow)|^sum_weight_gradients_kernel$"
)
OPTIMIZER = re.compile(r"^_(advance|update)_kernel$")
"""This project's AdamW; a CUDA graph does not say in which stage it was captured."""
COPY = re.compile(
    r"memcpy|memset|copy_kernel|catarray|fillfunctor"
    r"|triton_poi_fused_(_?(to_copy|clone|copy|t|transpose|permute|view|unsafe_view|expand|slice|cat|stack|fill)_)+\d+$"
    r"|aten::(copy_|_to_copy|to|clone|cat|stack|fill_|zero_|contiguous)$"
)
REDUCTION = re.compile(r"reduce|triton_(red|per)|nll_loss|aten::(sum|mean|max|amax|nll_loss\w*)$")
ELEMENTWISE = re.compile(
    r"elementwise|triton_poi|^(rotate_qkv|swiglu_(for|back)ward)_kernel$"
    r"|aten::(add|sub|mul|div|pow|neg|exp|rsqrt|sigmoid|silu|silu_backward|masked_fill|gt|arange|where|square|sqrt)_?$"
)
# Patterns of names as they are.
GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply|^Kernel2?$|device_kernel")
"""Kernels whose template arguments identify them."""
NAMING = re.compile(r"cutlass\w*\d\w*|\w*(?:Functor|functor|kernel|Ops)\w*|\w+_impl\w*")
WRAPPERS = re.compile(r"^([AB]?UnaryFunctor|BinaryFunctor|gpu_kernel\w*|\w*elementwise_kernel\w*|opmath_\w*)$")


def categorize(name: str, *, operator: str = "", stage: str = "", range_: str = "") -> str:
    """Choose the category of a kernel, or of an operator of a CPU, by its full name, and by what launched it.

    The operator that launched it identifies unknown kernels.
    """
    lower = name.lower()
    if "nccl" in lower:
        return "communication"
    if stage == "optimizer" or OPTIMIZER.search(lower):
        return "optimizer"
    if ATTENTION.search(lower):
        return "attention"
    if MATMUL.search(lower) or MATMUL_OPERATORS.search(name):
        return "matmul"
    if "norm" in range_.rpartition(".")[2] or NORMALIZATION.search(lower):
        return "normalization"
    by_name = (("softmax", SOFTMAX), ("copy", COPY), ("reduction", REDUCTION), ("elementwise", ELEMENTWISE))
    for category, pattern in by_name:
        if pattern.search(lower):
            return category
    return "matmul" if MATMUL_OPERATORS.search(operator) else "other"


def is_product(name: str) -> bool:
    """Whether a matmul kernel or operator computes a matmul itself."""
    return not NO_PRODUCTS.search(name)


def short_name(name: str) -> str:
    """Shorten a name to at most LONGEST_NAME characters that still distinguish kernels.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, char*>(int)")
    'vectorized_elementwise_kernel: FillFunctor'
    """
    plain = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    plain = re.sub(r"^.*?::type (?=\w)", "", plain).removeprefix("void ")
    path, arguments = re.fullmatch(r"([^<(]*)(.*)", plain, re.DOTALL).groups()  # type: ignore[union-attr]
    parent, _, base = path.strip().rpartition("::")
    if plain.startswith("aten::") or " " in path.strip():
        base = path.strip()  # an operator, or words as in "Memcpy DtoD (Device -> Device)"
    elif base == "kernel":
        base = f"{parent.rpartition('::')[2]}::{base}"
    if GENERIC.search(base):
        named = [word for word in NAMING.findall(arguments) if not WRAPPERS.match(word)]
        base = named[0] if named and base.startswith("Kernel") else ": ".join([base, *named[:1]])
    base = re.sub(r"(?:_align[ac]\d+)*_execute(_split_k)?_kernel__5x_cublas$", r"\1", base)
    if len(base) > LONGEST_NAME:
        base = f"{base[: LONGEST_NAME - 25]}…{base[-24:]}"
    return base
