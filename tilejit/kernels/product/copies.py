from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def copy_block(pair, tile):
    """Block `tile`, R x C, of the matrices [rows, columns] of y = x."""
    x, y, rows, columns, x_apart, x_pitch, x_step, y_apart, y_pitch, y_step, X_ROWS, Y_ROWS, R, C, UNIT = pair
    BYTES: tl.constexpr = UNIT * x.dtype.element_ty.primitive_bitwidth // 8
    x, y = tl.multiple_of(x, BYTES), tl.multiple_of(y, BYTES)
    x_pitch, y_pitch = tl.multiple_of(x_pitch, UNIT), tl.multiple_of(y_pitch, UNIT)
    if X_ROWS:
        columns = tl.multiple_of(columns, UNIT)
    else:
        rows = tl.multiple_of(rows, UNIT)
    across = tl.cdiv(columns, C)
    if x_apart is not None:
        tiles = across * tl.cdiv(rows, R)
        x += (tile // tiles).to(tl.int64) * tl.multiple_of(x_apart, UNIT)
        y += (tile // tiles).to(tl.int64) * tl.multiple_of(y_apart, UNIT)
        tile %= tiles
    r = ((tile // across) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = ((tile % across) * C + tl.arange(0, C)).to(tl.int64)[None, :]
    inside = (r < rows) & (c < columns)
    source = x + (r * x_pitch + c * x_step if X_ROWS else r * x_step + c * x_pitch)
    target = y + (r * y_pitch + c * y_step if Y_ROWS else r * y_step + c * y_pitch)
    tl.store(target, tl.load(source, inside), inside)


@tilejit.kernel(do_not_specialize=("first", "one", "other"))
def copy_kernel(first, one, other):
    """A block a program of one pair of matrices, or behind the `first` programs of the other (None: there is one)."""
    pid = tl.program_id(0)
    if other is None:
        copy_block(one, pid)
    else:
        if pid < first:
            copy_block(one, pid)
        else:
            copy_block(other, pid - first)
