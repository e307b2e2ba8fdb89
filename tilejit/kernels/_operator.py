"""Operators from one declaration each: what a call allocates, launches and checks, how torch knows it, its gradient."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tilejit
from tilejit.records import dataclass

Array = Any
DType = Any
_TYPES = {"Array": "Tensor", "Array | None": "Tensor?", "list[Array]": "Tensor[]", "int": "SymInt",
          "int | None": "SymInt?", "float": "float", "float | None": "float?", "bool": "bool", "str": "str",
          "str | None": "str?", "DType": "ScalarType", "DType | None": "ScalarType?"}


@dataclass(frozen=True)
class Result:
    """An array like the one that `rule` gives, or (array, shape, dtype), with True behind those of zeros; None:
    nothing."""

    name: str
    rule: Callable[..., Any]
    needs: tuple[str, ...]

    def like(self, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """(an array of the kind, shape, dtype, perhaps True), or None."""
        found = self.rule(*[values[n] for n in self.needs])
        if found is None or isinstance(found, tuple):
            return found
        return found, None, None


@dataclass(frozen=True)
class Declaration:
    name: str
    arguments: tuple[inspect.Parameter, ...]
    results: tuple[Result, ...]
    mutates: tuple[str, ...]

    def schema(self) -> str:
        changed = dict(zip(self.mutates, "abcdefgh"))
        taken = []
        for p in self.arguments:
            kind = _TYPES[p.annotation]
            if p.name in changed:
                kind = kind.replace("Tensor", f"Tensor({changed[p.name]}!)")
            default = "" if p.default is p.empty else f"={_spelled(p.default)}"
            taken.append(f"{kind} {p.name}{default}")
        made = ", ".join(["Tensor"] * len(self.results))
        return f"({', '.join(taken)}) -> {made if len(self.results) == 1 else f'({made})'}"

    def signature(self) -> inspect.Signature:
        """The function's: results may be given by name."""
        given = [inspect.Parameter(r.name, inspect.Parameter.KEYWORD_ONLY, default=None) for r in self.results]
        return inspect.Signature([*self.arguments, *given])

    def allocated(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        """None for results that a call has not."""
        made = []
        for r in self.results:
            like, out = r.like(values), given.get(r.name)
            if out is not None and like is not None:
                shape, found = tuple(like[0].shape if like[1] is None else like[1]), tuple(out.shape)
                if shape != found:
                    raise tilejit.LaunchError(f"{self.name}: {r.name} must have shape {list(shape)}, found "
                                              f"{list(found)}")
            new = tilejit.zeros_like if like is not None and like[3:] == (True,) else tilejit.empty_like
            made.append(None if like is None else out if out is not None else new(*like[:3]))
        return made

    def fake(self, *args: Any, **given: Any) -> Any:
        values = {**{p.name: p.default for p in self.arguments}, **dict(zip([p.name for p in self.arguments], args)),
                  **given}
        return self.returned(self.allocated(values, {}), values)

    def returned(self, made: Sequence[Any], values: Mapping[str, Any]) -> Any:
        """A result that a call has not is an array without elements."""
        if None in [x if x is None else 0 for x in made]:
            first = next(values[p.name] for p in self.arguments if p.annotation == "Array")
            made = [tilejit.empty_like(first, (0,)) if x is None else x for x in made]
        return made[0] if len(made) == 1 else tuple(made) if made else None


def operator(mutates: Sequence[str] = (), replay: bool = True,
             **results: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Declare an operator by its results and a body `(*results, *arguments)` that launches (docs/modules.md)."""
    rules = tuple(Result(n, rule, tuple(inspect.signature(rule).parameters)) for n, rule in results.items())

    def declare(body: Callable[..., Any]) -> Any:
        parameters = tuple(inspect.signature(body).parameters.values())
        arguments = parameters[len(rules):]
        name = body.__name__
        for p in arguments:
            if p.annotation not in _TYPES:
                raise TypeError(f"{name}: the annotation {p.annotation!r} of {p.name} is none of {', '.join(_TYPES)}")
        declared = Declaration(name, arguments, rules, tuple(mutates))
        names = tuple(p.name for p in arguments)
        defaults = {p.name: p.default for p in arguments if p.default is not p.empty}
        known, outputs = frozenset(names), frozenset(r.name for r in rules)
        signature = declared.signature()

        def call(*args: Any, **given: Any) -> Any:
            values = {**defaults, **dict(zip(names, args))}
            outs: dict[str, Any] = {}
            for n, v in given.items():
                (outs if n in outputs else values)[n] = v
            if values.keys() != known or len(args) > len(names):
                signature.bind(*args, **given)  # raises, and says what is wrong
            made = declared.allocated(values, outs)
            body(*made, *[values[n] for n in names])
            return declared.returned(made, values)

        call.__name__, call.__qualname__, call.__doc__, call.__module__ = name, name, body.__doc__, body.__module__
        call.__signature__ = signature  # type: ignore[attr-defined]
        return _registered(declared, call, replay)

    return declare


def _registered(declared: Declaration, fn: Callable[..., Any], replay: bool = True) -> Any:
    fn.declared = declared  # type: ignore[attr-defined]
    return tilejit.torch_op(f"tilejit::{declared.name}", declared.schema(), mutates=declared.mutates,
                            fake=declared.fake, replay=replay)(fn)


def function(rule: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Declare an operator by a host function that makes its result (as of `operator`, by `rule`) itself. torch gives it
    the arguments that are annotated with types of torch's."""
    def declare(fn: Callable[..., Any]) -> Any:
        arguments = tuple(p for p in inspect.signature(fn).parameters.values() if p.annotation in _TYPES)
        needs = tuple(n for n in inspect.signature(rule).parameters if n in [p.name for p in arguments])
        return _registered(Declaration(fn.__name__, arguments, (Result("out", rule, needs),), ()), fn)

    return declare


def gradient(op: Any, *of: str | tuple[str, ...], passed: str = "",
             only: tuple[str, Any] | None = None) -> Callable[[Any], Any]:
    """The operator that follows the gradient of another (docs/modules.md)."""
    def attach(g: Any) -> Any:
        _wire(op, g, tuple((n,) if isinstance(n, str) else n for n in of), passed, only)
        return g

    return attach


def _wire(op: Any, g: Any, of: tuple[tuple[str, ...], ...], passed: str, only: tuple[str, Any] | None) -> None:
    declared: Declaration = op.fn.declared
    names, results = [p.name for p in declared.arguments], [r.name for r in declared.results]
    gradients = ["grad"] if len(results) == 1 else [f"grad_{r}" for r in results]
    optional = [p.name for p in g.fn.declared.arguments if p.default is not p.empty]
    needed = [p.name for p in g.fn.declared.arguments
              if p.name not in optional or p.name in names or only and p.name in results]
    kept = [n for n in needed if n not in gradients and not n.startswith("wants_")]
    unknown = {*kept} - {*names, *results} | {n for group in of for n in group} - {*names}
    if unknown:
        raise TypeError(f"{g.name}: {', '.join(sorted(unknown))}: neither arguments nor results of {op.name}")
    plain = {p.name for p in declared.arguments if not p.annotation.startswith("Array")}
    arrays, rest = ([n for n in kept if (n in plain) is not_array] for not_array in (False, True))
    at = {**{n: f"inputs[{i}]" for i, n in enumerate(names)},
          **{r: "output" if len(results) == 1 else f"output[{i}]" for i, r in enumerate(results)}}
    asked = {n: f"_asked[{i}]" for i, n in enumerate(names)}
    if only:
        at[results[0]] += f" if {at[only[0]]} == {only[1]!r} else None"
    alone = len(g.fn.declared.results) == 1
    found = {n: "_found" if alone else f"_found[{i}]" for i, group in enumerate(of) for n in group} | {passed: "grad"}
    lacking = [n for n in names if n not in found]
    given = [asked[n[6:]] if n.startswith("wants_") else f"{n}={n}" if n in optional else n for n in needed]
    text = [
        "def keep(ctx, inputs, output):",
        f"    ctx.save_for_backward({', '.join(at[n] for n in arrays)})",
        *([f"    ctx.rest = {', '.join(at[n] for n in rest)},"] if rest else []),
        f"def backward(_ctx, {', '.join(gradients)}):",
        "    _asked = _ctx.needs_input_grad",
        f"    if len(_asked) < {len(names)}: _asked += (False,) * ({len(names)} - len(_asked))",  # what was left out
        *([f"    if {' or '.join(asked[n] for n in lacking)}: _refuse(_asked)"] if lacking else []),
        *([f"    {', '.join(arrays)}, = _ctx.saved_tensors"] if arrays else []),
        *([f"    {', '.join(rest)}, = _ctx.rest"] if rest else []),
        f"    _found = _g({', '.join(given)})",
        "    return " + ", ".join(f"{found[n]} if {asked[n]} else None" if n in found else "None" for n in names)]

    def refuse(asked: tuple[bool, ...]) -> None:
        name = next(n for n, is_so in zip(names, asked) if is_so and n in lacking)
        raise tilejit.LaunchError(f"{declared.name} has no gradient of {name}: detach it")

    space: dict[str, Any] = {"_g": g, "_refuse": refuse}
    exec("\n".join(text), space)
    op.register_autograd(space["backward"], setup_context=space["keep"])


def _spelled(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
