"""Categories and short names, of names as CUPTI and PyTorch gave them on an H200 and on a CPU."""

import pytest

from cs336_systems.measure.kernel_names import CATEGORIES, LONGEST_NAME, categorize, is_product, short_name

VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
NAMES = [
    # category, short name, full name
    ("matmul", "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT", "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT"),
    (
        "matmul",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
        "_execute_kernel__5x_cublas",
    ),
    (
        "matmul",
        "cutlass_80_simt_sgemm_64x64_8x5_nt_align1",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(cutlass_80_simt_sgemm_64x64_8x5::Params)",
    ),
    ("matmul", "splitKreduce_kernel", "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(cublasParams)"),
    ("matmul", "gemvx::kernel", "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, float>(cublasGemv)"),
    ("attention", "forward_kernel", "forward_kernel"),
    ("attention", "flash_fwd_kernel", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64> >(Params)"),
    ("softmax", "softmax_warp_forward", "void (anonymous namespace)::softmax_warp_forward<float, float, 9>(float*)"),
    ("softmax", "cunn_SoftMaxForwardSmem", "void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<4>(x)"),
    (
        "elementwise",
        "elementwise_kernel_with_index",
        "void (anonymous namespace)::elementwise_kernel_with_index<int>()",
    ),
    ("elementwise", "vectorized_elementwise_kernel: CUDAFunctor_add", VECTORIZED.format("CUDAFunctor_add<float>")),
    (
        "elementwise",
        "vectorized_elementwise_kernel: MulFunctor",
        VECTORIZED.format("BUnaryFunctor<float, at::native::binary_internal::MulFunctor<float> >"),
    ),
    ("copy", "vectorized_elementwise_kernel: FillFunctor", VECTORIZED.format("FillFunctor<float>")),
    (
        "copy",
        "vectorized_elementwise_kernel: bfloat16_copy_kernel_cuda",
        VECTORIZED.format("bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"),
    ),
    ("copy", "Memcpy DtoD", "Memcpy DtoD (Device -> Device)"),
    (
        "reduction",
        "reduce_kernel: sum_functor",
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float,"
        " at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float)#1}> > >(x)",
    ),
    ("other", "vectorized_gather_kernel", "void at::native::vectorized_gather_kernel<16, long>(char*, char*)"),
    ("communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)"),
    # Inductor's
    ("normalization", None, "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0"),
    ("softmax", None, "triton_per_fused__softmax_arange_div_gt_masked_fill_prepare_softmax_online_3"),
    ("reduction", None, "triton_red_fused_mul_sum_0"),
    ("elementwise", None, "triton_poi_fused__unsafe_view_mul_silu_2"),
    ("elementwise", None, "triton_poi_fused__to_copy_add_view_3"),
    ("copy", None, "triton_poi_fused__to_copy_t_1"),
    ("matmul", None, "triton_tem_fused_mm_7"),
    # a CPU's
    ("matmul", None, "aten::bmm"),
    ("softmax", None, "aten::_softmax_backward_data"),
    ("copy", None, "aten::_to_copy"),
    ("elementwise", None, "aten::masked_fill_"),
    ("attention", None, "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ("other", None, "aten::as_strided"),
]


@pytest.mark.parametrize(("category", "short", "name"), NAMES, ids=[name[:60] for *_, name in NAMES])
def test_a_name_tells_what_a_kernel_does(category, short, name):
    assert categorize(name) == category
    assert short_name(name) == (short or name)


def test_where_a_kernel_was_launched_decides_on_what_several_parts_of_a_model_use():
    mean = NAMES[15][2]
    assert categorize(mean, range_="blocks.attention_norm") == "normalization"
    assert categorize(mean, range_="blocks.feed_forward") == "reduction"
    assert categorize(NAMES[10][2], stage="optimizer") == "optimizer"
    assert categorize("some_new_kernel", operator="aten::mm") == "matmul"
    assert categorize("some_new_kernel", operator="aten::sort") == "other"
    assert categorize("nvjet_x", range_="final_norm") == "matmul"


def test_every_category_occurs():
    assert {category for category, *_ in NAMES} == set(CATEGORIES) - {"optimizer"}


def test_a_long_name_loses_its_middle():
    name = "triton_per_fused__to_copy_add_div_embedding_dense_backward_expand_mul_pow_sum_view_13"
    short = short_name(name)
    assert len(short) == LONGEST_NAME
    assert short.startswith(name[:50])
    assert short.endswith("_sum_view_13")


@pytest.mark.parametrize(
    ("name", "product"),
    [("nvjet_x", True), ("splitKreduce_kernel", False), ("aten::mm", True), ("aten::linear", False)],
)
def test_products_are_told_from_what_helps_them(name, product):
    assert is_product(name) == product
