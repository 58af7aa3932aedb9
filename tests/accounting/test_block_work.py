"""The work of a block, by hand."""

from cs336_systems.accounting.block_work import plain_block
from cs336_systems.sizes import parse_size


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
