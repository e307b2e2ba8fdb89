"""device_print and device_assert: calls of the driver's vprintf and __assertfail (CUDA C++ Programming Guide,
"Formatted Output" and "Assertion")."""
from __future__ import annotations

import json

from tilejit.ir import Op, Value
from tilejit.ir.ops.control import print_format
from tilejit.ir.types import DType, Tile, Type, elem_of
from tilejit.ptx.emit import Emitter, emits

_DECLARATION = ".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);"
_ASSERTFAIL = (".extern .func __assertfail (.param .b64 message, .param .b64 file, .param .b32 line, "
               ".param .b64 function, .param .b64 size) .noreturn;")
#: The most bytes of values: three program ids, five indices, 8 bytes of value.
_VALUES = 40


@emits("device_print")
def _device_print(e: Emitter, op: Op) -> None:
    p = e.p
    if _DECLARATION not in p.header:
        p.header.append(_DECLARATION)
        p.decls.append(f".local .align 8 .b8 print_values[{_VALUES}];")
    ids = [p.new("b32", "mov.u32", f"%ctaid.{axis}") for axis in "xyz"]
    values = p.new("b64", "cvta.local.u64", p.new("b64", "mov.u64", "print_values"))
    if not op.operands:
        form = _format(e, print_format(op, None))
        _call(e, form, values, ids, None, p.new("pred", "setp.eq.u32", e.role.tid, 0))
    for which, v in enumerate(op.operands):
        form, t = _format(e, print_format(op, which)), elem_of(v.type)
        assert isinstance(t, DType)
        first = _first_holder(e, v.type)
        for register, x in enumerate(e.get(v)):
            _call(e, form, values, [*ids, *_index(e, v, register)], (t, x), first)


@emits("device_assert")
def _device_assert(e: Emitter, op: Op) -> None:
    p = e.p
    if _ASSERTFAIL not in p.header:
        p.header.append(_ASSERTFAIL)
    conds = e.get(op.operands[0])
    masks = e.get(op.operands[1]) if len(op.operands) > 1 else [None] * len(conds)
    bad = p.new("pred", "setp.ne.b32", 0, 0)
    for cond, mask in dict.fromkeys(zip(conds, masks)):
        one = p.new("pred", "not.pred", cond)
        one = one if mask is None else p.new("pred", "and.pred", one, mask)
        bad = p.new("pred", "or.pred", bad, one)
    held = p.label("held")
    p("bra", held, pred=f"!{bad}")
    message, file, function = (_format(e, text) for text in (str(op.attrs["message"]), op.loc.file if op.loc else "",
                                                             e.fn.name))
    line, size = p.new("b32", "mov.b32", op.loc.line if op.loc else 0), p.new("b64", "mov.b64", 1)
    p("call", "__assertfail", f"({message}, {file}, {line}, {function}, {size})")
    p.place(held)


def _format(e: Emitter, text: str) -> str:
    p, data = e.p, text.encode() + b"\0"
    name = f"print_format_{len(p.header)}"
    p.header.append(f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};  "
                    f"// {json.dumps(text)}")
    return p.new("b64", "cvta.global.u64", p.new("b64", "mov.u64", name))


def _first_holder(e: Emitter, t: Type) -> str | None:
    if isinstance(t, Tile):
        assert t.layout is not None
        return e.owner(t.layout)
    return e.p.new("pred", "setp.eq.u32", e.role.tid, 0)


def _index(e: Emitter, v: Value, register: int) -> list[str]:
    if not isinstance(v.type, Tile):
        return []
    assert v.type.layout is not None
    return [e.p.new("b32", "xor.b32", e.thread_coord(v.type.layout, dim), at)
            for dim, at in enumerate(v.type.layout.apply(register=register))]


def _call(e: Emitter, form: str, values: str, words: list[str], value: tuple[DType, str] | None,
          pred: str | None) -> None:
    p, skip = e.p, e.p.label("printed")
    if pred is not None:
        p("bra", skip, pred=f"!{pred}")
    for i, word in enumerate(words):
        p("st.local.u32", f"[print_values+{4 * i}]", word)
    if value is not None:
        t, x = value
        at = -(-4 * len(words) // t.bytes) * t.bytes
        p(f"st.local.{'f' if t.is_float else 'u'}{t.bits}", f"[print_values+{at}]", x)
    status = p.reg("b32")
    p("call.uni", f"({status})", "vprintf", f"({form}, {values})")
    p.place(skip)
