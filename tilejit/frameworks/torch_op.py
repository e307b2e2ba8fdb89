"""`tilejit.torch_op`: a Python function that launches kernels, as a custom operator of torch"""
from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from types import SimpleNamespace
from typing import Any

from tilejit.errors import LaunchError
from tilejit.ir.types import DType
from tilejit.runtime import arrays
from tilejit.runtime.arrays import stand_in, to_torch_dtype
from tilejit.runtime.hooks import HOOKS
from tilejit.runtime.recording import bound
from tilejit.runtime.replay import Calls, Replayed, spelled
from tilejit.runtime.traced import number_of, targets


class TorchOp:
    def __init__(self, fn: Callable[..., Any], name: str, schema: str | None, mutates: Sequence[str],
                 fake: Callable[..., Any] | None, replay: bool = False):
        self.namespace, colons, self.short = name.partition("::")
        if not (colons and self.namespace.isidentifier() and self.short.isidentifier()):
            raise LaunchError(f"torch_op: expected a name like 'mine::scale', found {name!r}")
        self.fn, self.name, self.schema, self.mutates, self.fake = fn, name, schema, tuple(mutates), fake
        self.defaults = {n: p.default for n, p in inspect.signature(fn).parameters.items()}
        self.names = tuple(self.defaults)
        given = _arguments(schema) if schema else []
        self.taken: tuple[str, ...] | None = None if schema is None else tuple(words[-1] for words in given)
        integers = [words[-1] for words in given if words[0] == "int[]"]
        self.backward: Callable[..., Any] | None = None
        self.setup_context: Callable[..., Any] | None = None
        self.library: Any = None
        self.node: Callable[..., Any] | None = None  # how autograd sees a call
        self.lock = threading.RLock()
        self.number = number_of(self)
        self.calls = Calls(fn, self._called, self._graded, integers) if replay else None
        self.run = Replayed(fn, below=True, integers=integers) if replay else fn
        update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<tilejit operator {self.name}>"

    def bind(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """And a function that makes this call's launches again, in the same arrays: see `recording.bound`."""
        return bound(self.fn, args, kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return self.fn(*args, **kwargs)
        if not arrays.tracing() and not self._transformed(args, kwargs):
            if torch.is_grad_enabled() and _wants_grad(args, kwargs):
                return self._graded(*args, **kwargs)
            return self.fn(*args, **kwargs)
        return self._dispatched(*args, **kwargs)

    @arrays.traced_as(_called)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs) if self.calls is None else self.calls.fast(*args, **kwargs)

    def _graded(self, *args: Any, **kwargs: Any) -> Any:
        if self.node is None:
            self.define()
            self.node = _node(self) or self._dispatched
            if self.calls is not None:
                self.calls.wanted = self.node  # what such calls go to from now on
        return self.node(*args, **kwargs)

    def _dispatched(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the operator, or of the function, if it is given what the operator does not take."""
        torch = sys.modules["torch"]
        taken = self._taken(args, kwargs)
        if taken is None:
            return self.fn(*args, **kwargs)
        _define(self.number)
        return getattr(getattr(torch.ops, self.namespace), self.short)(**taken)

    def _taken(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The operator's arguments in a call, by name; None if others are given.

        Raises LaunchError where those are given and a gradient is asked for.
        """
        torch = sys.modules["torch"]
        named = {n: to_torch_dtype(v) if isinstance(v, DType) else v
                 for n, v in (*zip(self.names, args), *kwargs.items())}
        if self.taken is None:
            return named
        taken = {n: v for n, v in named.items() if n in self.taken}
        others = [n for n, v in named.items() if n not in taken and v is not self.defaults.get(n)]
        if others and not arrays.tracing() and torch.is_grad_enabled() and _wants_grad(args, kwargs):
            raise LaunchError(f"{self.name}: {', '.join(others)} cannot be given where a gradient is asked for: use "
                              "torch.no_grad(), or leave it out")
        return None if others else taken

    def _transformed(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether torch has to know of this call: for a function transform or a dispatch mode, or as it is tracing."""
        torch = sys.modules["torch"]
        if HOOKS.recorders and HOOKS.recorder() is not None:  # inside of a function that is recorded
            return False
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        return bool(tensors) and (any([stand_in(type(x)) for x in tensors])
                                  or torch._C._are_functorch_transforms_active()
                                  or torch._C._len_torch_dispatch_stack() > 0)

    @property
    def overload(self) -> Any:
        """As `torch.library.opcheck` takes it."""
        import torch

        self.define()
        return self.overload_of(torch)

    def register_autograd(self, backward: Callable[..., Any], *,
                          setup_context: Callable[..., Any] | None = None) -> None:
        """`backward(ctx, *gradients)` returns a gradient (or None) for each argument; `setup_context(ctx, inputs,
        output)` keeps what it needs, as in `torch.library.register_autograd`; the parameters have these names."""
        with self.lock:
            if self.mutates:
                self._refuse_gradient()
            self.backward, self.setup_context, self.node = backward, setup_context, None
            if self.calls is not None:
                self.calls.wanted = self._graded

    def define(self) -> None:
        """Register the operator with torch once. Raises LaunchError for a function without types."""
        import torch

        with self.lock:
            if self.library is not None:
                return
            schema = self.schema
            if schema is None:
                try:
                    schema = torch.library.infer_schema(self.fn, mutates_args=self.mutates)
                except ValueError as error:
                    raise LaunchError(f"torch_op {self.name}: {error}; annotate it, or give a schema") from None
            self.library = torch.library.Library(self.namespace, "FRAGMENT")
            self.library.define(self.short + schema)
            self.library.impl(self.short, self._run, "CompositeExplicitAutograd")
            torch.library.register_fake(self.name, self.fake or self.fn, lib=self.library)
            if not self.overload_of(torch)._schema.is_mutable:
                torch.library.register_autograd(self.name, self._backward, setup_context=self._setup_context,
                                                lib=self.library)
            elif self.backward is not None:
                self._refuse_gradient()

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self.taken is None or self.taken == self.names[:len(self.taken)]:
            return self.run(*args, **kwargs)
        return self.run(**dict(zip(self.taken, args)), **kwargs)

    def overload_of(self, torch: Any) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.short).default

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        if self.backward is None:
            raise LaunchError(f"{self.name} has no gradient: give it one with register_autograd")
        return self.backward(ctx, *gradients)

    def _setup_context(self, **given: Any) -> None:
        if self.setup_context is not None:
            self.setup_context(**given)

    def _refuse_gradient(self) -> None:
        raise LaunchError(f"torch_op {self.name}: an operator that changes its arguments cannot have a gradient: "
                          "return new arrays instead")


def operators() -> dict[str, TorchOp]:
    """By name: those of the parts of `tilejit.kernels` that are loaded, and the program's own."""
    return {op.name: op for op in targets.values() if isinstance(op, TorchOp)}


def _arguments(schema: str) -> list[list[str]]:
    """The words of each argument of a schema: its type, and at last its name."""
    return [p.split("=")[0].split() for p in schema[1:schema.rindex(") ->")].split(", ") if " " in p]


def _node(op: TorchOp) -> Callable[..., Any] | None:
    """A node in autograd's graph, without the operator's dispatch, or None."""
    import torch

    arguments = op.overload_of(torch)._schema.arguments
    parameters = list(inspect.signature(op.fn).parameters.values())
    simple = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    if op.overload_of(torch)._schema.is_mutable or not {p.kind for p in parameters} <= simple or \
            any(a.kwarg_only for a in arguments):
        return None
    lists = [a.name for a in arguments if "List[" in str(a.type) and "Tensor" in str(a.type)]
    dtypes = [a.name for a in arguments if "ScalarType" in str(a.real_type)]
    taken = [a.name for a in arguments]
    others = [p.name for p in parameters if p.name not in taken]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    passed = ", ".join([n if taken[:i] == positional[:i] else f"{n}={n}" for i, n in enumerate(taken, 1)])
    space: dict[str, Any] = {"_general": op._dispatched, "_DType": DType, "_torch_dtype": to_torch_dtype,
                             "_wants": _wants_grad, "_keep": op.setup_context, "_backward": op.backward or op._backward,
                             "_run": op.run.calls if isinstance(op.run, Replayed) else SimpleNamespace(fast=op.fn)}
    head, onward = spelled(parameters, space)
    found = [f"None if {n in lists} else _found[{i}]" for i, n in enumerate(taken)]
    lines = [f"def forward(_ctx, {', '.join(taken)}):",
             f"    _output = _run.fast({passed})",
             *([f"    _keep(ctx=_ctx, inputs=({', '.join(taken)},), output=_output)"] if op.setup_context else []),
             "    return _output",
             "def without_lists(_ctx, *_gradients):",
             "    _found = _backward(_ctx, *_gradients)",
             f"    return {', '.join(found)},",
             f"def {op.short}({head}):",
             *(f"    if {n} is not _d_{n}: return _general({onward})" for n in others),
             *(f"    if {n} and _wants({n}, {{}}): return _general({onward})" for n in lists),
             *(f"    if type({n}) is _DType: {n} = _torch_dtype({n})" for n in dtypes),
             f"    return _apply({', '.join(taken)})"]
    exec("\n".join(lines), space)
    node = type(op.short, (torch.autograd.Function,), {
        "forward": staticmethod(space["forward"]),
        "backward": staticmethod(space["without_lists" if lists else "_backward"])})
    # Where no function transform is active, `node.apply` comes to this.
    space["_apply"] = super(torch.autograd.Function, node).apply
    return space[op.short]


def _wants_grad(args: tuple, kwargs: dict[str, Any]) -> bool:
    return any([getattr(x, "requires_grad", False) for x in (*args, *kwargs.values())])


def _define(number: int) -> None:
    targets[number].define()


# See runtime/traced.py: a call on constants, which torch's tracer makes as it is.
_define._dynamo_marked_constant = True  # type: ignore[attr-defined]


def torch_op(name: str, schema: str | None = None, *, mutates: Sequence[str] = (),
             fake: Callable[..., Any] | None = None,
             replay: bool = False) -> Callable[[Callable[..., Any]], TorchOp]:
    """Make a function that launches kernels an operator of torch, `torch.ops.<namespace>.<name>`.

    name: `"namespace::name"`. schema: torch's, `"(Tensor x, float factor) -> Tensor"`; without one it is read off the
    annotations. mutates: parameters whose tensors the function changes. fake: what the operator returns for fake
    tensors; without it the function itself runs on them (its launches do nothing), so it should only allocate outputs
    and launch. It works under `torch.compile(fullgraph=True)`, `torch.export` and, with `register_autograd`, autograd.
    replay: calls that need none of that are replayed: for functions that decide by facts of their arguments alone
    (rules: runtime/replay.py).

    Raises LaunchError for a name without a namespace, and for a function whose arguments torch has no types for.
    """
    return partial(_make, name, schema, mutates, fake, replay)


def _make(name: str, schema: str | None, mutates: Sequence[str], fake: Callable[..., Any] | None, replay: bool,
          fn: Callable[..., Any]) -> TorchOp:
    made = TorchOp(fn, name, schema, mutates, fake, replay)
    if schema is None or "torch.library" in sys.modules:  # else at the first call that needs it
        made.define()
    return made
