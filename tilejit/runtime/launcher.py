"""Launchers: functions generated for one signature of one kernel, for launches in a microsecond or two."""
from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

from tilejit.ptx.metadata import Expr, PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime import driver, knobs
from tilejit.runtime.arrays import DeviceArray, plain_tensors, same_as
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.hooks import HOOKS
from tilejit.runtime.launch import MANY
from tilejit.runtime.params import _AS_BITS, Frame, NotForTMA, Packer, bits, divide, is_whole
from tilejit.runtime.signature import ArgumentKeys

if TYPE_CHECKING:
    from tilejit.runtime.compile import CompiledKernel
    from tilejit.runtime.launch import DeviceEntry

#: A parameter that a call leaves out.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()
_SIMPLE = {"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "_divide({}, {})",
           "min": "min({}, {})", "max": "max({}, {})"}


class _Text:
    def __init__(self, arguments: Mapping[str, Any], packer: Packer):
        self.arguments = arguments
        #: integers that packing checks
        self.packed = {p.expr[1] for p in packer.params if isinstance(p, ScalarParam) and p.dtype == "int32"
                       and p.expr[0] == "arg"}
        self.space: dict[str, Any] = {"_divide": divide, "_bits": bits}
        self.guards: list[str] = []
        self.tensors: dict[str, str] = {}  # torch tensor -> its guard
        self.aligned: list[str] = []
        self.addresses: dict[str, str] = {}  # array or descriptor -> local variable of its address
        self.fetch: list[str] = []
        self.assign: list[str] = []

    def name(self, value: Any) -> str:
        name = f"_c{len(self.space)}"
        self.space[name] = value
        return name

    def expression(self, e: Expr) -> str:
        kind = e[0]
        if kind == "const":
            return repr(e[1])
        if kind == "arg":
            return str(e[1])
        if kind in ("shape", "stride"):
            return f"_f_{e[1]}.{'shape' if kind == 'shape' else 'strides'}[{e[2]}]"
        return _SIMPLE[kind].format(self.expression(e[1]), self.expression(e[2]))


def make(name: str, arguments: Mapping[str, Any], constexprs: set[str], keys: Mapping[str, ArgumentKeys],
         defaults: Mapping[str, Any], given: Collection[str], options: Mapping[str, Any], compiled: CompiledKernel,
         entry: DeviceEntry, resolve: Callable[..., Any], captured: list[tuple[Mapping[str, Any], str, Any]],
         following: Callable[..., Any]) -> Callable[..., Any] | None:
    """The launcher for calls like one with these arguments and options (docs/modules.md)."""
    packer: Packer = entry.packer
    if entry.blocking or any(p.fill == "desc" and not is_whole(p) for p in packer.map_params):
        return None
    text = _Text(arguments, packer)
    for n, x in arguments.items():
        if n in given:
            text.guards.append(f"{n} is _M")
            text.assign.append(f"{n} = {text.name(x)}")
            if n not in constexprs and not isinstance(x, (int, float)):
                return None
        elif not (_constant(text, n, x) if n in constexprs else _argument(text, n, x, keys[n])):
            return None
    if text.tensors:
        each, called = " and ".join(text.tensors.values()), f"({', '.join(text.tensors)})"
        known = text.name(same_as(*[arguments[n] for n in text.tensors], sizes=False)) + called
        text.guards.append(f"({known} or {each})" if len(text.tensors) > 1 else each)
    if (row := compiled.metadata.spanned) is not None and row[0] not in given:
        from tilejit.passes.odd_rows import left

        low, high = entry.compiled.options.get("row_span") or left(int(arguments[row[0]]), *row[1:])
        text.guards.append(f"{low} <= {row[0]} <= {high}")
    for table, key, value in captured:
        text.guards.append(f"{text.name(table)}.get({key!r}) is {text.name(value)}")
    if not all([_constant(text, n, x) for n, x in options.items()]):
        return None
    comma = ", " if arguments else ""
    more = "".join(f"{n}=_M, " for n in options)
    named = ", ".join(f"({n!r}, {n})" for n in options)
    kept = f"**{{n: x for n, x in [{named}] if x is not _M}}, " if options else ""
    onward = f"return _next(_grid, {', '.join(arguments)}{comma}*_more, {kept}**_options)"
    late = f"return _next(_grid, {', '.join('_M' if n in given else n for n in arguments)}{comma}{kept}**_options)"
    body = _block(text, packer, late)
    if body is None:
        return None
    space = text.space
    loaded, box = entry.loaded, [(None, 0, 0, None)]
    other = [] if compiled.metadata.mergeable == 1 else [
        f"        if _dims[0] {'>=' if entry.compiled is compiled else '<'} {MANY}: {late}"]
    space.update(_M=MISSING, _O=dict(options), _overrides=knobs.overrides, _K=knobs.overrides(), _hooks=HOOKS.active,
                 _next=following, _box=box, _free=packer.free, _Frame=Frame, _packer=packer, _place=packer.place,
                 _pack=packer.struct.pack_into, _unfit=(NotForTMA, struct.error, OverflowError),
                 _device=loaded.device, _name=loaded.name, _call=loaded.call,
                 _function=loaded.function, _done=loaded.success, _again=loaded.launch, _index=entry.index,
                 _current=entry.current_stream, _handle=driver.stream_handle, _compiled=compiled,
                 _resolve=resolve, _configure=loaded.configure)
    head = ", ".join(f"{n}=_d_{n}" for n in arguments)
    space.update({f"_d_{n}": MISSING if n in given else defaults.get(n, MISSING) for n in arguments})
    by_name = ", ".join(f"{n!r}: {n}" for n in arguments)
    lines = [
        f"def {name}(_grid, /, {head}{comma}*_more, {more}**_options):",
        "    if not ((not _options or len(_options) == 1 and 'stream' in _options) and not _more and not _hooks "
        f"and _overrides() is _K{_and(text.guards)}): {onward}",
        *(f"    {line}" for line in text.fetch),
        *([f"    if ({' | '.join(text.aligned)}) & 15: {onward}"] if text.aligned else []),
        *(f"    {line}" for line in text.assign),
        "    if type(_grid) is not tuple:",
        f"        _grid = _resolve(_grid, {{{by_name}}}, _O)",
        "    _h = _handle(_options['stream']) if _options and _options['stream'] is not None else _current(_index)",
        "    _g, _s, _programs, _config = _box[0]",
        "    if _g is not _grid and _g != _grid or _s != _h:",
        f"        _dims = _resolve(_grid, {{{by_name}}}, _O)",
        "        if 0 in _dims: return None",
        *other,
        "        _programs, _config = _dims[0], _configure(_dims, _h)",
        "        _box[0] = _grid, _h, _programs, _config",
        "    try: _frame = _free.pop()",
        "    except IndexError: _frame = _Frame(_packer)",
        *(f"    {line}" for line in body),
        "    _device.last = _name",
        "    if _call(_config, _function, _frame.address, 0)[0] is not _done:",
        f"        _again(_resolve(_grid, {{{by_name}}}, _O), _h, _frame.address)",
        "    _free.append(_frame)",
        "    return _compiled"]
    exec(_code("\n".join(lines), f"<launcher of {name}>"), space)
    made: Callable[..., Any] = space[name]
    return made


@lru_cache(maxsize=256)
def _code(text: str, name: str) -> CodeType:
    return compile(text, name, "exec")


def _and(guards: list[str]) -> str:
    return "".join(f" and {g}" for g in guards)


def _constant(text: _Text, n: str, x: Any) -> bool:
    """A guard for a constant. (A float that is 0 or no number has no comparison of its own.)"""
    if type(x) in (int, str) or type(x) is float and x and x == x:
        c = text.name(x)  # mostly the same object: a literal of the caller
        text.guards.append(f"({n} is {c} or {n} == {c} and type({n}) is {text.name(type(x))})")
    elif type(x) in (list, dict, set):
        return False
    else:
        text.guards.append(f"{n} is {text.name(x)}")
    return True


def _argument(text: _Text, n: str, x: Any, keys: ArgumentKeys) -> bool:
    kind = type(x)
    same = f"type({n}) is {text.name(kind)}"
    if x is None:
        text.guards.append(f"{n} is None")
    elif kind in plain_tensors and x.get_device() >= 0:
        text.tensors[n] = f"{same} and {n}.dtype is {text.name(x.dtype)} and {n}.get_device() == {x.get_device()}"
        _address(text, n, f"{n}.data_ptr()", keys.align, x.data_ptr())
    elif kind is DeviceArray:
        text.guards.append(f"{same} and {n}.signature == {text.name(x.signature)}")
        _address(text, n, f"{n}.address", False, 0)
    elif kind is TensorDescriptor:
        text.guards.append(f"{same} and (_f_{n} := {n}.facts).signature is {text.name(x.signature)}")
        _address(text, n, f"{n}.address", False, 0)
    elif kind is bool or kind is float:
        text.guards.append(same)
    elif kind is int:
        ints = keys[int]
        guard = keys.guards.get(ints(x), f"{text.name(ints)}({{n}}) == {text.name(ints(x))}")
        guard = guard.replace(" < 2147483648", "") if n in text.packed else guard
        text.guards.append(f"{same} and {guard.format(n=n)}")
    else:
        return False
    return True


def _address(text: _Text, n: str, fetch: str, align: bool, address: int) -> None:
    """Read an address; one that a kernel is specialised on must be as aligned as the first was."""
    local = text.addresses[n] = f"_a_{n}"
    text.fetch.append(f"{local} = {fetch}")
    if align and not address & 15:
        text.aligned.append(local)
    elif align:
        text.aligned.append(f"(not {local} & 15)")  # True counts as 1


def _block(text: _Text, packer: Packer, onward: str) -> list[str] | None:
    lines: list[str] = []
    scalars: list[str] = []
    for p in packer.params:
        if isinstance(p, PointerParam):
            scalars.append(text.addresses[p.arg])
        elif not isinstance(p, TensorMapParam):
            value = text.expression(p.expr)
            scalars.append(f"_bits({value}, {p.dtype!r})" if p.dtype in _AS_BITS else value)
    if packer.map_params:
        lines.append("_maps = _frame.maps")
        lines.append("_words = _frame.words")
    for number, m in enumerate(packer.map_params):
        local = text.addresses[m.base_arg]
        if is_whole(m):
            facts, differ = f"_f_{m.base_arg}", "is not"
        else:
            if m.fill == "desc" or local not in text.aligned and type(text.arguments[m.base_arg]) is not DeviceArray:
                return None  # an address that TMA may refuse is looked at by the slow way
            shape, strides = (", ".join(map(text.expression, es)) for es in (m.shape, m.strides))
            facts, differ = f"_m{number}", "!="
            lines.append(f"{facts} = (({shape},), ({strides},), {m.fill!r})")
        lines.append(f"if _maps[{number}] {differ} {facts}: _place(_frame, {number}, {local}, {facts})")
        lines.append(f"else: _words[{16 * number}] = {local}")
    if scalars:
        lines.append(f"_pack(_frame.memory, _frame.scalars, {', '.join(scalars)})")
    return ["try:", *(f"    {line}" for line in lines), f"except _unfit: {onward}"] if lines else []
