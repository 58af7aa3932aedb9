"""Names of kernels as the report prints them."""

import pytest

from scripts.views.kernels import readable


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma", "xmma_gemm tn 128x64"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8…tage3_warpsize2x2x1_ffma", "xmma_gemm nn 128x128"),
        ("cutlass_80_simt_sgemm_256x128_8x4_nt_align1", "cutlass sgemm nt 256x128"),
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "nvjet TNN 192x192"),
        ("unrolled_elementwise_kernel: direct_copy_kernel_cuda", "unrolled_elementwise: direct_copy"),
        ("elementwise_kernel: MulFunctor", "elementwise: MulFunctor"),
        ("aten::copy_", "aten::copy_"),
        ("softmax_warp_forward", "softmax_warp_forward"),
    ],
)
def test_long_names_keep_what_tells_kernels_apart(kernel, shown):
    assert readable(kernel) == shown
