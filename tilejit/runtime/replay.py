"""Host functions that launch kernels, called at the price of their launches: `@tilejit.replayed`."""
from __future__ import annotations

import inspect
import keyword
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
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
from tilejit.runtime.recording import Recorder, bound, replay

#: Calls that are remembered of a function; beyond, all are forgotten.
MOST = 4096
#: Types whose values are facts as they are. (Floats: see `_Form`.)
_PLAIN = (bool, int, str, bytes, type(None), type, DType, Enum, FunctionType, BuiltinFunctionType)


@lru_cache(maxsize=1024)
def _kind(kind: type) -> str:
    """How an argument of a type is known; "holder": of arrays; "": not."""
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
    if kind in _PLAIN or issubclass(kind, _PLAIN) or frozen or hasattr(kind, "launch_traced"):  # the last: kernels
        return "value"
    return "holder" if hasattr(kind, "arrays") else ""


class _Unknown(Exception):
    """A value that is not known by facts."""


def nested(x: Any, addresses: list[int], found: list[Any]) -> tuple:
    """The facts of a value in a tuple; its arrays go to `found`, their addresses to `addresses`."""
    kind: Any = type(x)
    how = _kind(kind)
    if how == "nested" or how == "holder":
        return (kind, *[nested(e, addresses, found) for e in (x if how == "nested" else x.arrays)])
    if how == "tensor" and x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise _Unknown
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
    return tuple(map(addresses.index, addresses)) if len(set(addresses)) < len(addresses) else None


#: kind -> what of an argument {p} is read first into variable {a}, and its facts
_READ = {"tensor": ("{a} = {p}.data_ptr()",
                    "{p}.dtype, {p}.shape, {p}.is_contiguous() or {p}.stride(), {a} & 15, {p}.get_device()"),
         "array": ("{a} = {p}.address", "{p}.signature, {p}.shape"),
         "descriptor": ("{a} = {p}.address", "{p}.facts"),
         "value": ("", "{p}"), "float": ("", "{p} or repr({p})"),
         "nested": ("", "_nested({p}, _more, _found)"), "holder": ("", "_nested({p}, _more, _found)")}


class Calls(dict[tuple, Callable[..., Any]]):
    """Names and types of the arguments that are no defaults -> a generated function that looks the facts up."""

    _CHAINED = 8

    def __init__(self, fn: Callable[..., Any], around: Callable[..., Any], wanted: Callable[..., Any] | None = None,
                 integers: Collection[str] = ()):
        super().__init__()
        self.fn, self.around, self.wanted, self.integers = fn, around, wanted, integers
        self.parameters = list(inspect.signature(fn).parameters.values())
        self.defaults = {p.name: p.default for p in self.parameters if p.default is not p.empty}
        self.names = [p.name for p in self.parameters]
        self.positional = [p.name for p in self.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.fixed = not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) or p.name.startswith("_")
                             for p in self.parameters)
        self.fast: Callable[..., Any] = self._by_types
        self.chained = 0
        #: why calls were recorded in vain -> how many
        self.refused: Counter[str] = Counter()

    def _by_types(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.positional, args))
        named = {**given, **kwargs}
        if not self.fixed or len(args) > len(given) or len(named) < len(given) + len(kwargs) or \
                not {n for n in self.names if n not in self.defaults} <= named.keys() <= {*self.names}:
            return self.around(*args, **kwargs)
        told = {n: named[n] for n in self.names if n in named and not (
            n in self.defaults and named[n] is self.defaults[n])}
        return self[tuple([(n, type(x)) for n, x in told.items()])](**told)

    def __missing__(self, types: tuple) -> Callable[..., Any]:
        made = self[types] = self._form([n for n, _ in types], [t for _, t in types])
        return made

    def _form(self, params: list[str], types: list[type]) -> Callable[..., Any]:
        kinds = ["value" if p in self.integers and t is tuple else _kind(t) for p, t in zip(params, types)]
        if "" in kinds:
            return self.around
        addresses = [f"_a{i}" for i, k in enumerate(kinds) if k in ("tensor", "array", "descriptor")]
        deep = "nested" in kinds or "holder" in kinds
        leading = [n for n, p in zip(params, self.positional) if n == p]
        leading = leading if params[:len(leading)] == self.positional[:len(leading)] else []
        call = ", ".join([*leading, *(f"{n}={n}" for n in params[len(leading):])])
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
        known = [*reads, f"_key = {''.join(f'{f}, ' for f in facts)}_overrides()", "_replay = _table.get(_key)"]
        if deep:  # what hangs in tuples is looked at one by one
            known = ["try:", *(f"    {line}" for line in known), f"except (_Unknown, TypeError): return _fn({call})"]
        graded = f"_grad() and ({' or '.join(f'{p}.requires_grad' for p in tensors)})"
        space: dict[str, Any] = {}
        head, onward = spelled(self.parameters, space)
        same = [*(f"type({n}) is _t{i}" for i, n in enumerate(params)),
                *(f"{n} is not _d_{n}" for n, t in zip(params, types) if n in self.defaults and
                  type(self.defaults[n]) is t),
                *(f"{q.name} is _d_{q.name}" for q in self.parameters if q.name not in params)]
        name = getattr(self.fn, "__name__", "")
        name = name if name.isidentifier() and not keyword.iskeyword(name) else "call"
        lines = [f"def {name}({head}):",
                 f"    if not ({' and '.join(same) or 'True'}): return _next({onward})",
                 f"    if {' or '.join(guards)}: return _around({call})",
                 *([f"    if {graded}: return _calls.wanted({call})"] if tensors and self.wanted is not None else []),
                 *(f"    {line}" for line in known),
                 "    if _replay is None:",
                 f"        return _first(_key, ({''.join(f'{p}, ' for p in params)}), "
                 f"({''.join(f'{a}, ' for a in fetched)}), {'_found' if deep else '()'})",
                 f"    return _replay({given})"]
        form = _Known(self, params, kinds, fetched, call)
        space |= {
            "_hooks": HOOKS.active, "_around": self.around, "_calls": self, "_fn": self.fn,
            "_overrides": knobs.overrides, "_table": form.table, "_first": form.first, "_nested": nested,
            "_alike": alike, "_Unknown": _Unknown,
            "_transforms": transforms, "_modes": _never, "_grad": _never,
            "_next": self.fast if self.chained < self._CHAINED else self._by_types}
        space |= {f"_t{i}": t for i, t in enumerate(types)}
        torch = sys.modules.get("torch")
        if torch is not None:
            space |= {"_transforms": torch._C._are_functorch_transforms_active,
                      "_modes": torch._C._len_torch_dispatch_stack, "_grad": torch.is_grad_enabled}
        exec(_code("\n".join(lines)), space)
        made: Callable[..., Any] = space[name]
        if self.chained < self._CHAINED:
            self.fast, self.chained = made, self.chained + 1
        return made


def spelled(parameters: Iterable[inspect.Parameter], space: dict[str, Any]) -> tuple[str, str]:
    """Parameters as text of a generated function, whose defaults go to `space`, and how it hands them on."""
    head, onward, star = [], [], False
    for q in parameters:
        if q.kind is q.KEYWORD_ONLY and not star:
            head.append("*")
            star = True
        head.append(q.name if q.default is q.empty else f"{q.name}=_d_{q.name}")
        onward.append(f"{q.name}={q.name}" if star else q.name)
        space[f"_d_{q.name}"] = q.default
    return ", ".join(head), ", ".join(onward)


def _never() -> bool:
    return False


def transforms() -> bool:
    """Whether a function transform or dispatch mode of torch is active; torch may be loaded later."""
    torch = sys.modules.get("torch")
    return torch is not None and (torch._C._are_functorch_transforms_active() or
                                  torch._C._len_torch_dispatch_stack() > 0)


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    return compile(text, "<calls of a host function>", "exec")


class _Known:
    def __init__(self, calls: Calls, params: list[str], kinds: list[str], fetched: list[str], call: str):
        self.calls, self.params, self.kinds, self.fetched = calls, params, kinds, fetched
        self.table: dict[tuple, Callable[..., Any]] = {}
        self.seen: set[tuple] = set()
        space = {"_fn": calls.fn}
        exec(_code(f"def plainly({', '.join([*params, *fetched])}): return _fn({call})"), space)
        self.plainly: Callable[..., Any] = space["plainly"]

    def first(self, key: tuple, arguments: tuple, fetched: tuple, found: list[Any]) -> Any:
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
    """See `replayed`. below: torch calls it below autograd, where gradients change nothing."""

    def __init__(self, fn: Callable[..., Any], below: bool = False, integers: Collection[str] = ()):
        self.fn = fn
        self.calls = Calls(fn, fn, None if below else fn, integers)
        update_wrapper(self, fn)

    def _plainly(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    @arrays.traced_as(_plainly)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.calls.fast(*args, **kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return bound(self.fn, args, kwargs)

    def __repr__(self) -> str:
        return f"<replayed function {self.__name__}>"  # type: ignore[attr-defined]


def replayed(fn: Callable[..., Any]) -> Replayed:
    """Make the calls of a host function that launches kernels cost little more than its launches; docs/runtime.md says
    what that asks of it. (Operators, `tilejit.torch_op`, have it by `replay=True`.)
    """
    return Replayed(fn)
