"""Host functions that launch kernels, called at the price of their launches: `@tilejit.replayed`.

    @tilejit.replayed
    def softmax(x, out=None):
        out = tilejit.empty_like(x) if out is None else out
        softmax_kernel[...](x, out, ...)
        return out

A call is known by *facts*: of arrays the type, dtype, shape, strides, device, alignment (the address modulo 16) and
which of them are at one address; of all else the value; and the knobs that hold. The function runs as it is when its
facts come for the first time; the second time it is recorded (`recording.py`): what it allocated, and what it launched
over which arrays. From then on its Python does not run any more: outputs are allocated, addresses are written into
ready parameter blocks (a tensor map's address is one word of it), and the driver is called.

What that asks of a function: what it does follows from the facts of its arguments alone. It may choose kernels, make
descriptors, views, partials and grids, allocate (`tilejit.empty_like`, `tilejit.zeros_like`, torch's `empty` and
`zeros` families), call other such functions, and return arguments, what it allocated, None, or tuples of those. It must
not look at contents, at randomness or at state that changes, and not call what `bind` made. Where it computes by torch
(a `.contiguous()` that copies), launches over arrays from elsewhere, tunes, or runs on the CPU, that is noticed, and
such calls are made as they stand each time (`fn.calls.refused` counts why). Arguments: arrays, descriptors, numbers,
strings, dtypes, None, kernels and functions, enums, frozen dataclasses, tuples of all that, and objects with a tuple
`arrays` of what they hold (of which only those matter). Arguments of other types make a call that is not replayed.

Calls go around all this while there are hooks of launches (`tilejit.hooks`), torch's compiler is tracing, a function
transform or dispatch mode of torch is active, or, for operators (`tilejit.torch_op`), a gradient is asked for.
"""
from __future__ import annotations

import keyword
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache, update_wrapper
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from tilejit.ir.types import DType
from tilejit.runtime import arrays, knobs
from tilejit.runtime.arrays import DeviceArray, array_info, stand_in
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.hooks import HOOKS
from tilejit.runtime.recording import Recorder, replay

#: Calls that are remembered of a function; beyond, all are forgotten.
MOST = 4096
#: Types whose values are facts as they are. (Floats: see `_Form`.)
_PLAIN = (bool, int, str, bytes, type(None), type, DType, Enum, FunctionType, BuiltinFunctionType)


def _kind(kind: type) -> str:
    """How an argument of a type is known: "tensor", "array" (ours), "descriptor", "value", "float", "nested" (a tuple),
    "holder" (of arrays), or "" where it is not."""
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return "" if stand_in(kind) else "tensor"
    if torch is not None and kind is torch.dtype:
        return "value"
    if issubclass(kind, DeviceArray):
        return "array"
    if issubclass(kind, TensorDescriptor):
        return "descriptor"
    if kind is float:
        return "float"
    if issubclass(kind, tuple):
        return "nested"
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if kind in _PLAIN or issubclass(kind, _PLAIN) or frozen or hasattr(kind, "launch_traced"):      # the last: kernels
        return "value"
    return "holder" if hasattr(kind, "arrays") else ""


class _Unknown(Exception):
    """A value that is not known by facts."""


def nested(x: Any, addresses: list[int], found: list[Any]) -> tuple:
    """The facts of a value in a tuple; its arrays go to `found`, their addresses to `addresses`."""
    kind = type(x)
    how = _kind(kind)
    if how == "nested" or how == "holder":
        return (kind, *[nested(e, addresses, found) for e in (x if how == "nested" else x.arrays)])
    if how in ("tensor", "array"):
        address, dtype, shape, strides, device, *_ = array_info(x)
        addresses.append(address)
        found.append(x)
        return kind, address & 15, dtype, shape, strides, device
    if how == "descriptor":
        addresses.append(x.address)
        found.append(x.base)
        return kind, x.facts
    if not how:
        raise _Unknown
    return kind, (x or repr(x)) if how == "float" else x


def alike(addresses: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which addresses are equal; None if none are."""
    return tuple(map(addresses.index, addresses)) if len(set(addresses)) < len(addresses) else None


#: kind -> what of an argument {p} is read first into variable {a}, and its facts
_READ = {"tensor": ("{a} = {p}.data_ptr()", "{p}.dtype, {p}.shape, {p}.stride(), {a} & 15, {p}.get_device()"),
         "array": ("{a} = {p}.address", "{p}.signature, {p}.shape"),
         "descriptor": ("{a} = {p}.address", "{p}.facts"),
         "value": ("", "{p}"), "float": ("", "{p} or repr({p})"),
         "nested": ("", "_nested({p}, _more, _found)"), "holder": ("", "_nested({p}, _more, _found)")}


class Calls(dict[tuple, Callable[..., Any]]):
    """What the calls of a host function go through: types of the arguments (of those by keyword behind their names) ->
    a function generated for them, which looks the facts up.

    around: takes the calls that cannot be replayed now (hooks, transforms); wanted: those where a tensor asks for a
    gradient (None: they are calls as all others)."""

    def __init__(self, fn: Callable[..., Any], around: Callable[..., Any], wanted: Callable[..., Any] | None = None):
        super().__init__()
        self.fn, self.around, self.wanted = fn, around, wanted
        #: why calls were recorded in vain -> how many
        self.refused: Counter[str] = Counter()

    def __missing__(self, types: tuple) -> Callable[..., Any]:
        names = [t for t in types if type(t) is str]
        kinds = [t for t in types if type(t) is not str]
        count = len(kinds) - len(names)
        made = self._form(count, names, [_kind(t) for t in kinds])
        self[types] = made
        return made

    def _form(self, count: int, names: list[str], kinds: list[str]) -> Callable[..., Any]:
        if "" in kinds or not all(n.isidentifier() and not keyword.iskeyword(n) for n in names):
            return self.around
        params = [*(f"_p{i}" for i in range(count)), *names]
        addresses = [f"_a{i}" for i, k in enumerate(kinds) if k in ("tensor", "array", "descriptor")]
        deep = "nested" in kinds or "holder" in kinds
        call = ", ".join([*params[:count], *(f"{n}={n}" for n in names)])
        tensors = [p for p, k in zip(params, kinds) if k == "tensor"]
        guards = ["_hooks"]
        if tensors or deep:
            guards += ["_transforms()", "_modes()"]
        reads, facts = [], []
        for i, (p, k) in enumerate(zip(params, kinds)):
            read, fact = (t.format(p=p, a=f"_a{i}") for t in _READ[k])
            reads += [read] if read else []
            facts.append(fact)
        if deep:
            reads.insert(0, "_more, _found = [], []")
            facts.append(f"_alike(({', '.join([*addresses, '*_more'])},))")
        elif len(addresses) == 2:
            facts.append(f"{addresses[0]} == {addresses[1]}")
        elif len(addresses) == 3:
            facts.append("{0} == {1}, {0} == {2}, {1} == {2}".format(*addresses))
        elif addresses[1:]:
            facts.append(f"_alike(({', '.join(addresses)}))")
        fetched = [*addresses, *(["_more"] if deep else [])]
        given = ", ".join([*params, *fetched])
        stars = ", ".join([*params[:count], *(["*", *names] if names else [])])
        known = [*reads, f"_key = {''.join(f'{f}, ' for f in facts)}_overrides()", "_replay = _table.get(_key)"]
        if deep:                                    # what hangs in tuples is looked at one by one
            known = ["try:", *(f"    {line}" for line in known), f"except (_Unknown, TypeError): return _fn({call})"]
        graded = f"_grad() and ({' or '.join(f'{p}.requires_grad' for p in tensors)})"
        lines = [f"def call({stars}):",
                 f"    if {' or '.join(guards)}: return _around({call})",
                 *([f"    if {graded}: return _wanted({call})"] if tensors and self.wanted is not None else []),
                 *(f"    {line}" for line in known),
                 "    if _replay is None:",
                 f"        return _first(_key, ({''.join(f'{p}, ' for p in params)}), "
                 f"({''.join(f'{a}, ' for a in fetched)}), {'_found' if deep else '()'})",
                 f"    return _replay({given})"]
        form = _Known(self, count, params, kinds, fetched, call)
        space: dict[str, Any] = {
            "_hooks": HOOKS.active, "_around": self.around, "_wanted": self.wanted, "_fn": self.fn,
            "_overrides": knobs.overrides, "_table": form.table, "_first": form.first, "_nested": nested,
            "_alike": alike, "_Unknown": _Unknown,
            "_transforms": _never, "_modes": _never, "_grad": _never}
        torch = sys.modules.get("torch")
        if torch is not None:
            space |= {"_transforms": torch._C._are_functorch_transforms_active,
                      "_modes": getattr(torch._C, "_len_torch_dispatch_stack", _never),
                      "_grad": torch.is_grad_enabled}
        exec(_code("\n".join(lines)), space)
        made: Callable[..., Any] = space["call"]
        return made


def _never() -> bool:
    return False


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    return compile(text, "<calls of a host function>", "exec")


class _Known:
    """The calls with arguments of certain types: facts -> what replays them."""

    def __init__(self, calls: Calls, count: int, params: list[str], kinds: list[str], fetched: list[str], call: str):
        self.calls, self.count, self.params, self.kinds, self.fetched = calls, count, params, kinds, fetched
        self.table: dict[tuple, Callable[..., Any]] = {}
        self.seen: set[tuple] = set()
        space = {"_fn": calls.fn}
        exec(_code(f"def plainly({', '.join([*params, *fetched])}): return _fn({call})"), space)
        self.plainly: Callable[..., Any] = space["plainly"]

    def first(self, key: tuple, arguments: tuple, fetched: tuple, found: list[Any]) -> Any:
        """The first call with these facts, and the second, which is recorded."""
        if key not in self.seen:
            if len(self.seen) >= MOST:
                self.seen.clear()
            self.seen.add(key)
            return self.plainly(*arguments, *fetched)
        inputs = [(f"_a{i}", fetched[n], getattr(arguments[i], "base", arguments[i]) if k == "descriptor"
                   else arguments[i]) for n, (i, k) in enumerate(
                       (i, k) for i, k in enumerate(self.kinds) if k in ("tensor", "array", "descriptor"))]
        if found:
            inputs += [(f"_more[{n}]", a, x) for n, (a, x) in enumerate(zip(fetched[-1], found))]
        with Recorder() as recorder:
            result = self.plainly(*arguments, *fetched)
        made = replay(recorder, result, self.params, arguments, inputs, self.fetched)
        if len(self.table) >= MOST:
            self.table.clear()
        if isinstance(made, str):
            self.calls.refused[made] += 1
            made = self.plainly
        self.table[key] = made
        return result


class Replayed:
    """A host function whose calls are replayed; see `replayed`."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self.calls = Calls(fn, fn)
        update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if arrays.tracing():
            return self.fn(*args, **kwargs)
        if kwargs:
            given = (*map(type, args), *kwargs, *map(type, kwargs.values()))
            return self.calls[given](*args, **kwargs)
        return self.calls[tuple(map(type, args))](*args)

    def __repr__(self) -> str:
        return f"<replayed function {self.__name__}>"  # type: ignore[attr-defined]


def replayed(fn: Callable[..., Any]) -> Replayed:
    """Make the calls of a host function that launches kernels cost little more than its launches: see this module's
    text for what it asks of the function. (Operators, `tilejit.torch_op`, have it built in by `replay=True`.)"""
    return Replayed(fn)
