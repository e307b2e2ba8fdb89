"""Products and stores: wgmma groups in flight and their waits, operands that go through registers, staged stores."""
from __future__ import annotations

from tilejit.ir import Builder, Op, Value
from tilejit.ir.report import Record
from tilejit.ir.types import Buffer, DType, Tile, int32
from tilejit.schedule.pieces import from_registers, piece_type, write_piece
from tilejit.schedule.plan import behind, place, reads_slot, shared_operand
from tilejit.schedule.role import RoleState
from tilejit.schedule.stores import describe, staging_of


class Products(RoleState):
    """The part of a role's writer that deals with `dot`, `desc_store` and `desc_atomic`."""

    def _dot(self, op: Op, b: Builder) -> None:
        if "unit" in op.attrs:
            self._dot_mma(op, b)
            return
        loop = op.parent.parent if op.parent else None
        chain = self.plan.chains.get(loop, {}) if loop is not None else {}
        acc = self.env[op.operands[2]]
        if op not in chain:
            acc = b("pend", acc)
        extra = {k: v for k, v in op.attrs.items() if k in ("precision", "begin", "depth")}
        if op in self.plan.pieces:
            self._in_pieces(op, acc, op in chain, extra, b)
            return
        a, bb = (self._operand(op, i, b) for i in (0, 1))
        result = b("dot_async", a, bb, acc, **extra)
        result.name = op.result.name
        if op not in chain:
            self._wait(op, result, b)
            return
        self.env[op.result] = result
        if op is not list(chain)[-1]:
            return
        fenced = b.op("dot_fence", *(self.env[dot.result] for dot in chain)).results
        for dot, value in zip(chain, fenced):
            value.name = dot.result.name
            self.env[dot.result] = value

    def _wait(self, dot: Op, product: Value, b: Builder) -> None:
        """The sums of a product: the wait sinks to where they are needed (`sink_waits`)."""
        tile = b.op("dot_wait", product).result
        tile.name = dot.result.name
        self.env[dot.result] = tile

    def _in_pieces(self, op: Op, acc: Value, in_chain: bool, extra: dict, b: Builder) -> None:
        """A wgmma group for every piece of the first operand, which is computed while the one before multiplies.

        In a chain a piece's registers are written again in the next iteration, behind a fence; before the last piece
        all of the iteration before is done."""
        pieces, bb = self.plan.pieces[op], self._operand(op, 1, b)
        self.plan.report.append(Record(
            "operand", f"dot operand a at {place(op)} from registers, in {pieces.count} pieces", place(op), operand=0,
            pieces=pieces.count))
        size = piece_type(pieces, op.operands[0]).shape[1]
        for i in range(pieces.count):
            a = write_piece(pieces, i, op.operands[0], self.views, self.env, b)
            acc = b("dot_async", a, bb, acc, k=i * size, **extra)
            acc.name = op.result.name
            if in_chain:
                acc = b.op("dot_fence", acc).result
                acc.name = op.result.name
        if in_chain:
            self.env[op.result] = acc
        else:
            self._wait(op, acc, b)

    def _dot_mma(self, op: Op, b: Builder) -> None:
        """A product by mma.sync, of slots or registers."""
        operands = [self._view(op, i, b) or self.env[op.operands[i]] for i in (0, 1)]
        extra = {k: v for k, v in op.attrs.items() if k in ("precision", "begin", "depth")}
        result = b("dot_mma", *operands, self.env[op.operands[2]], **extra)
        result.name, result.type = op.result.name, op.result.type
        self.env[op.result] = result

    def _view(self, dot: Op, index: int, b: Builder) -> Value | None:
        """The ring's slot that a dot operand is read from in place, or None."""
        load = reads_slot(dot, index)
        if load is None:
            return None
        found = shared_operand(dot.operands[index])
        assert found is not None
        view = self.views[load]
        return b("view_trans", view, order=(1, 0)) if found[1] else view

    def _operand(self, dot: Op, index: int, b: Builder) -> Value:
        """A dot operand: the ring's slot in place, registers, or a staging buffer written from registers."""
        slot = self._view(dot, index, b)
        if slot is not None:
            return slot
        if index == 0 and from_registers(dot):
            self.plan.report.append(Record("operand", f"dot operand a at {place(dot)} from registers", place(dot),
                                           operand=0))
            return self.env[dot.operands[0]]
        value = self._in_registers(dot.operands[index], b)
        staged = self.staged.get((value, index))
        if staged is not None and staged[0] is b.block:          # for another product, and nothing has written it since
            self.through.setdefault(dot, []).append(staged[1])
            return b("view", staged[1], b.const(0, int32))
        t = value.type
        assert isinstance(t, Tile) and t.layout is not None and isinstance(t.elem, DType)
        k_order = (1, 0) if index == 0 else (0, 1)
        regs = t.layout.bases_of("register")
        natural = (1, 0) if regs and regs[0] == (0, 1) else (0, 1)
        order = natural if t.elem.bits == 16 else k_order
        buffer = self.top("alloc", name=f"{dot.result.name or 'dot'}_{'ab'[index]}",
                          type=Buffer.of(t, 1, order), private=True)
        self.through.setdefault(dot, []).append(buffer)
        size = buffer.type.slot_bytes                                                      # type: ignore[union-attr]
        self.plan.report.append(Record("operand", f"dot operand {'ab'[index]} at {place(dot)} goes through registers "
                                       f"into {size} bytes", place(dot), operand=index, bytes=size))
        view = b("view", buffer, b.const(0, int32))
        b.op("role_sync")            # the product before may still read the buffer elsewhere
        b.op("local_store", view, value)
        b.op("fence_async")
        b.op("role_sync")
        self.staged[value, index] = b.block, buffer
        return view

    def _promote_reuse(self, op: Op, b: Builder) -> None:
        """The value itself, and a note for the allocator: which buffers are behind it."""
        source = behind(op.operands[0])
        buffers = [v for x in source for v in self.through.get(x, ())]
        buffers += [v for shared in self.shared.values() for x, v in shared.buffers.items() if x in source]
        b.op("reuse", *sorted(buffers, key=lambda v: v.name))
        if op.operands[0] in self.env:
            self.env[op.result] = self.env[op.operands[0]]

    def _in_registers(self, v: Value, b: Builder) -> Value:
        """A dot operand that wgmma cannot read in place, in registers (transposed copies included)."""
        if v in self.env:
            return self.env[v]
        op = v.op
        assert isinstance(op, Op) and op.name == "trans", op
        inner = self._in_registers(op.operands[0], b)
        assert isinstance(inner.type, Tile) and inner.type.layout is not None
        order = tuple(op.attrs["order"])
        t = Tile(tuple(inner.type.shape[i] for i in order), inner.type.elem,
                 inner.type.layout.transpose(order))
        return b.op("trans", inner, order=order, result_types=[t]).result

    def _store(self, op: Op, b: Builder) -> None:
        """A store through its staging ring (with `store_stages=1` it is waited for at once), or by the store role."""
        if self.plan.store_rings:
            self.fill_pieces(op, b)
            return
        desc, value, *offsets = (self.env[v] for v in op.operands)
        assert isinstance(value.type, Tile)
        s = staging_of(op, value.type, self.fn, self.plan.staging)
        # Stores of equal pieces share their staging: each waits for its slots, and starts at the first one.
        key = s.buffer, s.stripes
        if key not in self.staging:
            self.staging[key] = self.top("alloc", name=f"{op.operands[0].name or 'store'}_stage", type=s.buffer,
                                         private=True)
        self.plan.report.append(describe(op, s))
        store = b.op("tma_store", desc, value, self.staging[key], *offsets, **s.attrs, **op.attrs)
        if self.fn.attrs.get("store_stages") == 1:
            store.attrs["now"] = True
