"""Packed tiles of 16-bit numbers in registers, two per register.

A long-lived 16-bit tensor, such as one carried through a loop, occupies a 32-bit register per element. Packed into
32-bit integers by hand, it needs half as many.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def pack(x, DTYPE: gl.constexpr):
    """Round x, [rows, columns] fp32, to DTYPE and pack neighbours of a row: [rows, columns / 2] int32."""
    low, high = gl.split(x.reshape([x.shape[0], x.shape[1] // 2, 2]))
    convert: gl.constexpr = "cvt.rn.f16x2.f32 $0, $2, $1;" if gl.float16 == DTYPE else "cvt.rn.bf16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(convert, "=r,r,r", [low, high], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpack(x, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Unpack the result of pack, [rows, columns] DTYPE, in a layout that leaves every element in its register."""
    pairs = gl.join(x.to(gl.int16), (x >> 16).to(gl.int16))
    y = pairs.reshape([x.shape[0], x.shape[1] * 2]).to(DTYPE, bitcast=True)
    return gl.convert_layout(y, LAYOUT, assert_trivial=True)
