"""How TMA stores are staged: in pieces of columns, through a ring of shared-memory tiles, by rows of each warpgroup."""
from __future__ import annotations

from dataclasses import dataclass

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, total_warps
from tilejit.ir.types import Buffer, Desc, DType, Tile
from tilejit.ptx.smem import tile_buffer
from tilejit.ptx.store import splits_by_registers, stripes_of

#: The ops that store through TMA.
STORES = ("desc_store", "desc_atomic")
#: Staging tiles of a store where the author leaves it open: one is written while another is stored.
STORE_STAGES = 2


@dataclass(frozen=True)
class Staging:
    """The staging of one `desc_store` or `desc_atomic`.

    buffer: `slots` tiles, one piece each, for each of the `mine` stripes of rows that a CTA has, one a warpgroup (with
    one, all warpgroups write a piece together); the whole program has `stripes`."""

    columns: int
    pieces: int
    slots: int
    stripes: int
    mine: int
    buffer: Buffer

    @property
    def rounds(self) -> int:
        """How often a store goes through all slots."""
        return self.pieces // self.slots


def staging_of(op: Op, t: Tile, fn: Function) -> Staging:
    """How a store of a tile is staged: `store_stages` tiles or two, one where registers do not split into pieces.

    Raises CompilationError where a program of several CTAs stores rows that do not divide between them."""
    desc = op.operands[0].type
    assert isinstance(t.elem, DType) and t.layout is not None and isinstance(desc, Desc)
    columns, stripes, ctas = min(t.shape[-1], 128 // t.elem.bytes), 1, fn.attrs.get("num_ctas", 1)
    if not splits_by_registers(t.layout, columns):
        columns = t.shape[-1]
    elif len(desc.block_shape) == 2:
        stripes = stripes_of(t.layout, total_warps(fn))
    if ctas > 1 and stripes < ctas:
        raise CompilationError(f"num_ctas={ctas}: the rows of what is stored do not divide between CTAs", op.loc)
    pieces, mine = t.shape[-1] // columns, stripes // ctas
    slots = min(pieces, fn.attrs.get("store_stages", STORE_STAGES))
    piece = Tile((t.shape[0] // stripes, *t.shape[1:-1], columns) if len(t.shape) > 1 else (columns,), t.elem)
    buffer = tile_buffer(piece, slots * mine, tuple(reversed(range(len(t.shape)))))
    return Staging(columns, pieces, slots, stripes, mine, buffer)


def describe(op: Op, s: Staging) -> str:
    """The staging in the report's words."""
    return (f"store at {op.loc.short() if op.loc else '?'}: TMA, staged {s.columns} columns at a time in "
            f"{s.slots} x {s.mine * s.buffer.slot_bytes} bytes"
            + (", every warpgroup its own rows" if s.stripes > 1 else ""))
