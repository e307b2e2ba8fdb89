"""One call of a host function, written down and made into a function that does it again."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

from tilejit.errors import LaunchError
from tilejit.runtime.arrays import ArrayInfo, array_info, is_torch
from tilejit.runtime.hooks import HOOKS
from tilejit.runtime.params import Frame, NotForTMA, PointerParam, TensorMapParam
from tilejit.runtime.tuples import SpreadEntry

if TYPE_CHECKING:
    from tilejit.runtime.launch import DeviceEntry

#: What torch does while a call is recorded, beside views: results without contents, or of zeros.
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})


class Recorder:
    """What a host function does in this thread. Holds every array that it meets, so that no two have one address."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.events: list[tuple[str, Any]] = []
        self.refused = ""

    def __enter__(self) -> Recorder:
        HOOKS.recorders.append(self)
        HOOKS.active.append(self)
        self.watch = _watch(self)
        self.watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.watch.__exit__(*error)
        HOOKS.active.remove(self)
        HOOKS.recorders.remove(self)

    def refuse(self, why: str) -> None:
        self.refused = self.refused or why

    def allocated(self, x: Any, zeroed: bool = False) -> None:
        self.events.append(("zeros" if zeroed else "empty", x))

    def launched(self, entry: Any, grid: tuple[int, int, int], flat: tuple, stream: Any) -> None:
        while isinstance(entry, SpreadEntry):
            entry, flat = entry.inner, entry.spread(flat)
        if not hasattr(entry, "loaded"):
            self.refuse("its kernels run on the CPU")
        elif entry.blocking or entry.nvtx or stream is not None:
            self.refuse("a launch is waited for, marked for profilers, or on a stream of its own")
        else:
            self.events.append(("launch", (entry, grid, flat)))


def _watch(recorder: Recorder) -> Any:
    torch = sys.modules.get("torch")
    return _watcher()(recorder) if torch is not None and hasattr(torch, "utils") else nullcontext()


@lru_cache(maxsize=1)
def _watcher() -> type:
    torch = sys.modules["torch"]

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __init__(self, recorder: Recorder):
            super().__init__()
            self.recorder = recorder

        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name, r = getattr(func, "_opname", ""), self.recorder
            if name in _EMPTY or name in _ZEROS:
                r.allocated(result, name in _ZEROS)
            elif not getattr(func, "is_view", False):
                r.refuse(f"it computes by torch: {func}")
            return result

    return Watch


def bound(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """A function that makes the launches of one call again, in the same arrays, and returns the same."""
    with Recorder() as recorder:
        result = fn(*args, **kwargs)
    if recorder.refused:
        raise LaunchError(f"{fn.__name__}: this call cannot be bound: {recorder.refused}")
    steps = [what[0].repeated(*what[1:], None, keep=what[2]) if kind == "launch" else what.zero_
             for kind, what in recorder.events if kind != "empty"]

    def repeat() -> Any:
        for step in steps:
            step()
        return result

    return repeat


class _Unrepeatable(Exception):
    """Why a recording is of no use."""


class _Arrays:
    def __init__(self) -> None:
        self.known: dict[int, str] = {}  # address -> text
        self.arrays: list[tuple[str, Any]] = []

    def add(self, text: str, address: int, x: Any) -> None:
        self.known.setdefault(address, text)
        self.arrays.append((text, x))

    def source(self, address: int) -> str | None:
        """None for the address of no array. Raises _Unrepeatable where arrays overlap."""
        if not address or address in self.known:
            return self.known.get(address, "0")
        inside = [(text, info) for text, info in self.infos() if info.span()[0] <= address < info.span()[1]]
        if len(inside) > 1:
            raise _Unrepeatable("a view is of memory that two arguments share")
        return f"{inside[0][0]} + {address - inside[0][1].address}" if inside else None

    def infos(self) -> list[tuple[str, ArrayInfo]]:
        return [(text, array_info(x)) for text, x in self.arrays]


def replay(recorder: Recorder, result: Any, parameters: Sequence[str], arguments: Sequence[Any],
           inputs: Sequence[tuple[str, int, Any]], fetched: Sequence[str]) -> Callable[..., Any] | str:
    """A function of `parameters` (were `arguments`) and `fetched` (addresses) that does what was recorded and
    returns what corresponds to `result`; or why there is none."""
    if recorder.refused:
        return recorder.refused
    try:
        return _made(recorder.events, result, parameters, arguments, inputs, fetched)
    except _Unrepeatable as why:
        return str(why)


def _made(events: list[tuple[str, Any]], result: Any, parameters: Sequence[str], arguments: Sequence[Any],
          inputs: Sequence[tuple[str, int, Any]], fetched: Sequence[str]) -> Callable[..., Any]:
    launches = [what for kind, what in events if kind == "launch"]
    devices = {id(entry.loaded.device): entry for entry, _, _ in launches}
    if len(devices) != 1:
        raise _Unrepeatable("it launches nothing" if not launches else "it launches on several GPUs")
    (entry,) = devices.values()
    device = entry.loaded.device
    space: dict[str, Any] = {"_current": entry.current_stream, "_index": device.index, "_device": device,
                             "_call": entry.loaded.call, "_done": entry.loaded.success}
    arrays = _Arrays()
    for text, address, x in inputs:
        arrays.add(text, address, x)
    lines: list[str] = []
    results: dict[Any, str] = {id(x): p for p, x in zip(parameters, arguments)}
    count = number = 0
    for kind, what in events:
        if kind == "launch":
            launched, grid, flat = what
            lines += _launch(number, launched, grid, flat, arrays, space)
            number += 1
        elif _memory(what) not in results:  # one array comes by as several objects
            lines += _allocate(count, what, kind == "zeros", device.index, space)
            arrays.add(f"_b{count}", what.data_ptr(), what)
            results[_memory(what)] = f"_o{count}"
            count += 1
    lines.append(f"return {_returned(result, results)}")
    text = "\n    ".join([f"def replay({', '.join([*parameters, *fetched])}):", "_h = _current(_index)", *lines])
    exec(_code(text), space)
    made: Callable[..., Any] = space["replay"]
    return made


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    return compile(text, "<replay>", "exec")


def _memory(x: Any) -> tuple[Any, ...]:
    """What tells that another tensor object is the same: torch makes aliases of results."""
    return x.data_ptr(), tuple(x.shape), tuple(x.stride()), x.dtype


def _returned(result: Any, results: dict[Any, str]) -> str:
    if id(result) in results and result is not None:
        return results[id(result)]
    if is_torch(result) and _memory(result) in results:
        return results[_memory(result)]
    if result is None:
        return "None"
    if type(result) is tuple:
        return "(" + "".join(_returned(x, results) + ", " for x in result) + ")"
    raise _Unrepeatable("it returns what is neither an argument nor an array that it allocated")


def _allocate(i: int, x: Any, zeroed: bool, index: int, space: dict[str, Any]) -> list[str]:
    """Lines that make an array like x and read its address."""
    torch = sys.modules.get("torch")
    if torch is None or not is_torch(x) or x.get_device() != index:
        raise _Unrepeatable("it allocates what is no tensor on the GPU")
    shape, strides, dtype = tuple(x.shape), tuple(x.stride()), x.dtype
    space |= {f"_s{i}": shape, f"_t{i}": strides, f"_d{i}": dtype, "_device_of_torch": getattr(x, "device", index)}
    if zeroed:
        if not x.is_contiguous():
            raise _Unrepeatable("it allocates zeros that are not contiguous")
        space["_zeros"] = torch.zeros
        made = f"_zeros(_s{i}, dtype=_d{i}, device=_device_of_torch)"
    else:
        direct = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
        if direct is not None and torch.cuda.device_count() == 1:
            space["_empty"] = direct
            made = f"_empty(_s{i}, _t{i}, _d{i})"
        else:
            space["_empty"] = torch.empty_strided
            made = f"_empty(_s{i}, _t{i}, dtype=_d{i}, device=_device_of_torch)"
    return [f"_o{i} = {made}", f"_b{i} = _o{i}.data_ptr()"]


def _launch(i: int, entry: DeviceEntry, grid: tuple[int, int, int], flat: tuple, arrays: _Arrays,
            space: dict[str, Any]) -> list[str]:
    while True:
        try:
            frame = entry.frame(grid, flat)
            break
        except NotForTMA:
            entry = entry.exact(flat, None)
    packer, loaded = entry.packer, entry.loaded
    words = packer.address_words(frame)
    if words is None:
        raise _Unrepeatable("a tensor map changes in more than its address")
    sources = {w: arrays.source(frame.words[w]) for w in words}
    scalars = [p for p in packer.params if not isinstance(p, TensorMapParam)]
    first = 16 * len(packer.map_params)
    numbers = [frame.words[first + n] for n, p in enumerate(scalars) if not isinstance(p, PointerParam)]
    if None in sources.values() or any(x >= 2 ** 32 and arrays.source(x) for x in numbers):  # an address as a number
        raise _Unrepeatable("a launch reads an array that the call did not get or allocate by itself")
    contents, free = bytes(frame.words), [frame]

    def another() -> Frame:
        made = Frame(packer)
        made.words.cast("B")[:] = contents
        return made

    box: list[tuple[Any, Any]] = [(None, None)]

    def configure(stream: int) -> tuple[Any, Any]:
        box[0] = found = stream, loaded.configure(grid, stream)
        return found

    def retry(stream: int, address: int) -> None:
        loaded.launch(grid, stream, address)

    space |= {f"_free{i}": free, f"_another{i}": another, f"_box{i}": box, f"_configure{i}": configure,
              f"_retry{i}": retry, f"_function{i}": loaded.function, f"_name{i}": loaded.name}
    lines = [f"try: _f = _free{i}.pop()", f"except IndexError: _f = _another{i}()"]
    moved = [(w, text) for w, text in sources.items() if text != "0"]
    if moved:
        lines += ["_w = _f.words", *(f"_w[{w}] = {text}" for w, text in moved)]
    return [*lines,
            f"_c = _box{i}[0]",
            f"if _c[0] != _h: _c = _configure{i}(_h)",
            f"_device.last = _name{i}",
            f"if _call(_c[1], _function{i}, _f.address, 0)[0] is not _done: _retry{i}(_h, _f.address)",
            f"_free{i}.append(_f)"]
