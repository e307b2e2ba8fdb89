"""Custom operators of torch that launch kernels (`traced.py`)."""
from __future__ import annotations

import hashlib
import keyword
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tilejit.errors import CompilationError, LaunchError
from tilejit.frontend import Const, build
from tilejit.ir.types import DTYPES
from tilejit.ir.written import written
from tilejit.runtime.compile import Arg
from tilejit.runtime.descriptor import TensorDescriptor
from tilejit.runtime.signature import describe_argument
from tilejit.runtime.traced import targets

#: The namespace of the operators: `torch.ops.tilejit`.
NAMESPACE = "tilejit"
_lock = threading.RLock()
_defined: set[str] = set()


@lru_cache(maxsize=1)
def library() -> Any:
    import torch

    return torch.library.Library(NAMESPACE, "FRAGMENT")


@lru_cache(maxsize=4096)
def kernel_operator(number: int, count: int, keywords: tuple, kinds: tuple, dtypes: tuple) -> str:
    """The name (in `torch.ops.tilejit`) of the operator for launches of a kernel or tuner with `count` positional
    arguments and these keywords, of these kinds (`traced._take`) and dtypes of tensors."""
    target = targets[number]
    kernel = target.kernel
    if target is kernel:
        kernel.plan(count, keywords, {})
    names = (*kernel.names[:count], *keywords)
    changed = _changed(target, names, kinds, dtypes)
    told = repr((kernel.source.fingerprint(), type(target).__name__, count, keywords, [_told(k) for k in kinds],
                 sorted(changed)))
    name = f"{kernel.__name__}_{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    with _lock:
        if name not in _defined:
            _define(name, target, count, names, kinds, changed)
            _defined.add(name)
    return name


def _define(name: str, target: Any, count: int, names: tuple[str, ...], kinds: tuple, changed: set[str]) -> None:
    import torch

    parameters = [p for n, k in zip(names, kinds) for p in _parameters(_spelled(n), k, n in changed)]
    makers = [_maker(k) for k in kinds]
    keywords = names[count:]

    def run(*flat: Any) -> None:
        values = iter(flat[:-1])
        given = [make(values) for make in makers]
        target.launch_traced(flat[-1], given[:count], dict(zip(keywords, given[count:])))

    lib = library()
    lib.define(f"{name}({', '.join([*parameters, 'SymInt[] grid_'])}) -> ()")
    lib.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", lambda *flat: None, lib=lib)


def _spelled(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) or name in ("self", "None") else name


def _parameters(name: str, kind: tuple, changed: bool) -> list[str]:
    tensor = "Tensor(" + name + "!)" if changed else "Tensor"
    what = kind[0]
    if what == "tensor":
        return [f"{tensor} {name}"]
    if what == "descriptor":
        return [f"{tensor} {name}", f"SymInt[] {name}_shape", f"SymInt[] {name}_strides"]
    if what in ("int", "float"):
        return [f"{'SymInt' if what == 'int' else 'float'} {name}"]
    if what == "tuple":
        return [p for i, k in enumerate(kind[1]) for p in _parameters(f"{name}_{i}", k, changed)]
    return []


def _maker(kind: tuple) -> Callable[[Iterator[Any]], Any]:
    what = kind[0]
    if what in ("tensor", "int", "float"):
        return next
    if what == "descriptor":
        return lambda values: TensorDescriptor(next(values), next(values), next(values), *kind[1:])
    if what == "tuple":
        makers = [_maker(k) for k in kind[1]]
        return lambda values: tuple([make(values) for make in makers])
    value = _constant(kind)
    return lambda values: value


def _constant(kind: tuple) -> Any:
    what, value = kind
    if what == "dtype":
        return DTYPES[value]
    if what == "kernel":
        return targets[value]
    if what == "torch":
        import torch

        return getattr(torch, value.removeprefix("torch."))
    return value


def _told(kind: tuple) -> Any:
    if kind[0] == "kernel":
        return "kernel", targets[kind[1]].source.fingerprint()
    return ("tuple", *map(_told, kind[1])) if kind[0] == "tuple" else kind


def _changed(target: Any, names: tuple[str, ...], kinds: tuple, dtypes: tuple) -> set[str]:
    """The arguments that a launch writes to; all, where the kernel cannot be built."""
    kernel, left = target.kernel, iter(dtypes)
    given = {n: _sample(k, left) for n, k in zip(names, kinds)}
    supplied, more = target.sample()
    try:
        given = {**kernel.parameter_defaults, **given, **supplied}
        described: dict[str, Arg] = {n: Const(given[n]) if n in kernel.constexprs else describe_argument(
            n, given[n], kernel.keys[n], kernel.annotated[n], typed=True) for n in kernel.names}
        options = {k: given.get(k, v) for k, v in kernel.defaults.items()}
        fn = build(kernel.source, described, {k: v for k, v in options.items() if v is not None})
    except (CompilationError, LaunchError, KeyError):
        return {n for n, k in zip(names, kinds) if _holds_tensor(k)}
    return {*written(fn), *more}


def _holds_tensor(kind: tuple) -> bool:
    return kind[0] in ("tensor", "descriptor") or kind[0] == "tuple" and any(map(_holds_tensor, kind[1]))


def _sample(kind: tuple, dtypes: Iterator[str]) -> Any:
    what = kind[0]
    if what == "tensor":
        return f"*{_dtype_name(next(dtypes))}"
    if what == "descriptor":
        name = _dtype_name(next(dtypes))
        return f"desc<{'tf32' if kind[3] else name}[{'x'.join(map(str, kind[1]))}]>"
    if what in ("int", "float"):
        return "int32" if what == "int" else "fp32"
    if what == "tuple":
        return tuple([_sample(k, dtypes) for k in kind[1]])
    return _constant(kind)


def _dtype_name(text: str) -> str:
    import torch

    from tilejit.runtime.arrays import torch_dtype

    return str(torch_dtype(getattr(torch, text.removeprefix("torch."))))
