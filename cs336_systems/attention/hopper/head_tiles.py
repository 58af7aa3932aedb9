"""Matrices whose rows are heads of 64, 80, 96 or 128 elements: tiles in shared memory, sums in registers.

Triton's tensors have lengths that are powers of two. So a matrix of 80 or 96 columns has two parts, of 64 and of 16 or
32 columns, in shared memory and in registers; others have one. Functions here accept and return tuples of parts.

TMA copies a box of columns at a time, the largest that divides both parts. With the swizzle of a box, the boxes of a
part lie one after the other, where wgmma expects them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from cs336_systems.attention.hopper.copies import async_load, async_store, reinterpret
from cs336_systems.attention.hopper.documents import coordinates
from cs336_systems.attention.hopper.registers import unpack


@gluon.constexpr_function
def box_columns(block_d):
    """Columns that TMA copies at a time: the largest power of two that divides the padded head dimension."""
    return block_d & -block_d


@gluon.constexpr_function
def wide_columns(block_d):
    """Number of columns in the first part of a matrix; the second part, if any, has the rest."""
    return max(64, box_columns(block_d))


@gluon.constexpr_function
def tile_layout(block_d, rank=2):
    """Layout of tiles in shared memory: with the swizzle of a box's rows, up to 128 bytes."""
    return gl.NVMMASharedLayout(min(2 * box_columns(block_d), 128), element_bitwidth=16, rank=rank)


@gluon.constexpr_function
def sum_layout(columns):
    """Layout of a sum of 64 rows in the registers of a warpgroup."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def allocate_tiles(DTYPE: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, BLOCK_D: gl.constexpr):
    """Allocate COUNT matrices: for each part [COUNT, ROWS, columns]."""
    WIDE: gl.constexpr = wide_columns(BLOCK_D)
    LAYOUT: gl.constexpr = tile_layout(BLOCK_D)
    tiles = (gl.allocate_shared_memory(DTYPE, [COUNT, ROWS, WIDE], LAYOUT),)
    if WIDE < BLOCK_D:
        tiles = tiles + (gl.allocate_shared_memory(DTYPE, [COUNT, ROWS, BLOCK_D - WIDE], LAYOUT),)
    return tiles


@gluon.jit
def matrix_of(tiles, n):
    """Matrix n of the allocated ones."""
    matrix = (tiles[0].index(n),)
    if len(tiles) == 2:
        matrix = matrix + (tiles[1].index(n),)
    return matrix


@gluon.jit
def box_of(part, i, COLUMNS: gl.constexpr):
    """Box i of a part of a matrix."""
    BOXES: gl.constexpr = part.shape[1] // COLUMNS
    if BOXES == 1:
        return part
    else:
        return reinterpret(part, part.dtype, [BOXES, part.shape[0], COLUMNS], part.layout).index(i)


@gluon.jit
def load_matrix(source, sequence, head, row, full, matrix):
    """Copy rows of a head to a matrix; elements beyond the sequence's end read as zero."""
    COLUMNS: gl.constexpr = source.block_type.shape[len(source.block_type.shape) - 1]
    for i in gl.static_range(len(matrix)):
        for j in gl.static_range(matrix[i].shape[1] // COLUMNS):
            column = i * matrix[0].shape[1] + j * COLUMNS
            place = coordinates(source, sequence, head, row, column)
            async_load(source, place, full, box_of(matrix[i], j, COLUMNS))


@gluon.jit
def store_matrix(target, sequence, head, row, matrix):
    """Copy a matrix to rows of a head; elements beyond the sequence's end are not written."""
    COLUMNS: gl.constexpr = target.block_type.shape[len(target.block_type.shape) - 1]
    for i in gl.static_range(len(matrix)):
        for j in gl.static_range(matrix[i].shape[1] // COLUMNS):
            column = i * matrix[0].shape[1] + j * COLUMNS
            async_store(target, coordinates(target, sequence, head, row, column), box_of(matrix[i], j, COLUMNS))


@gluon.jit
def load_operand(tiles, n, LAYOUT: gl.constexpr):
    """Load matrix n of two parts into registers, as the left operand of matmuls with this layout."""
    wide = tiles[0].index(n).load(gl.DotOperandLayout(0, LAYOUT, 2))
    narrow = tiles[1].index(n).load(gl.DotOperandLayout(0, LAYOUT, 2))
    return (wide, narrow)


@gluon.jit
def zero_sums(BLOCK_D: gl.constexpr):
    """Zeros for sums of 64 rows, fp32."""
    WIDE: gl.constexpr = wide_columns(BLOCK_D)
    sums = (gl.zeros([64, WIDE], gl.float32, sum_layout(WIDE)),)
    if WIDE < BLOCK_D:
        sums = sums + (gl.zeros([64, BLOCK_D - WIDE], gl.float32, sum_layout(BLOCK_D - WIDE)),)
    return sums


@gluon.jit
def multiply_transposed(a, b, zero):
    """Start to multiply matrix a with the transpose of matrix b, which may have one part if a has two."""
    product = zero
    for i in gl.static_range(len(a)):
        part = b[i] if len(a) == len(b) else b[0].slice(i * a[i].shape[1], a[i].shape[1], 1)
        product = warpgroup_mma(a[i], part.permute((1, 0)), product, use_acc=i > 0, is_async=True)
    return product


@gluon.jit
def add_product(sums, packed, matrix):
    """Start to add packed numbers (see pack) times a matrix to sums."""
    DTYPE: gl.constexpr = matrix[0].dtype
    x = unpack(packed, DTYPE, gl.DotOperandLayout(0, sums[0].type.layout, 2))
    result = (warpgroup_mma(x, matrix[0], sums[0], is_async=True),)
    if len(sums) == 2:
        x = unpack(packed, DTYPE, gl.DotOperandLayout(0, sums[1].type.layout, 2))
        result = result + (warpgroup_mma(x, matrix[1], sums[1], is_async=True),)
    return result


@gluon.jit
def wait_for_sums(PENDING: gl.constexpr, sums):
    """Wait until at most PENDING matmuls started after the matmul of `sums` are unfinished."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(PENDING, deps=(sums[0],)),)
    else:
        wide, narrow = warpgroup_mma_wait(PENDING, deps=(sums[0], sums[1]))
        return (wide, narrow)


@gluon.jit
def scale_rows(sums, factors):
    """Multiply each of 64 rows by its factor, [64] in the layout of the first part's rows."""
    scaled = (sums[0] * factors[:, None],)
    if len(sums) == 2:
        ROWS: gl.constexpr = gl.SliceLayout(1, sums[1].type.layout)
        scaled = scaled + (sums[1] * gl.convert_layout(factors, ROWS, assert_trivial=True)[:, None],)
    return scaled
