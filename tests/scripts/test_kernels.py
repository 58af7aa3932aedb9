"""Names of kernels as the report prints them, and their closed forms."""

import pytest

from cs336_systems.accounting.block_work import flash_attention, plain_block
from cs336_systems.sizes import parse_size
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


def test_the_work_of_a_block_is_that_of_its_kernels():
    # small at batch 4, context 512: 2048 tokens of 768, feed-forward 3072, 12 heads of 64; 12.6 M scores.
    work = plain_block(parse_size("small"), 4, 512, "bf16")
    scores = 4 * 12 * 512 * 512
    assert work["projections"].flops == 4 * 2 * 2048 * 768 * 768
    assert work["projections"].bytes == 4 * 2 * (2048 * 768 + 768 * 768 + 2048 * 768)
    assert work["SwiGLU matmuls"].flops == 3 * 2 * 2048 * 768 * 3072
    assert work["attention matmuls"].flops == 2 * 2 * scores * 64
    assert work["attention matmuls"].bytes == 2 * (3 * 2048 * 768 + scores) + 2 * (2048 * 768 + scores)
    assert work["softmax"].bytes == (4 + 4) * scores  # read and written in fp32 in both precisions
    # The copy and the mask read and write two bytes, the cast reads two and writes four.
    assert work["mask and cast"].bytes == (2 + 2 + 2 + 2 + 2 + 4) * scores
    assert plain_block(parse_size("small"), 4, 512, "fp32")["mask and cast"].bytes == 4 * 4 * scores
    flash = flash_attention(parse_size("small"), 4, 512, "bf16")
    assert (flash.flops, flash.bytes) == (2 * scores * 64, 4 * 2 * 2048 * 768)
