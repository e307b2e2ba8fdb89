from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def copy_block(pair, tile):
    """Block `tile`, R x C, of y [rows, columns] = x. pair: x, y, rows, columns, pitches (between rows if X_ROWS,
    Y_ROWS, else columns), those flags, R, C, UNIT: elements that lines are multiples of."""
    x, y, rows, columns, x_pitch, y_pitch, X_ROWS, Y_ROWS, R, C, UNIT = pair
    BYTES: tl.constexpr = UNIT * x.dtype.element_ty.primitive_bitwidth // 8
    x, y = tl.multiple_of(x, BYTES), tl.multiple_of(y, BYTES)
    x_pitch, y_pitch = tl.multiple_of(x_pitch, UNIT), tl.multiple_of(y_pitch, UNIT)
    if X_ROWS:
        columns = tl.multiple_of(columns, UNIT)
    else:
        rows = tl.multiple_of(rows, UNIT)
    across = tl.cdiv(columns, C)
    r = ((tile // across) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = ((tile % across) * C + tl.arange(0, C)).to(tl.int64)[None, :]
    inside = (r < rows) & (c < columns)
    source = x + (r * x_pitch + c if X_ROWS else r + c * x_pitch)
    target = y + (r * y_pitch + c if Y_ROWS else r + c * y_pitch)
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
