"""The op table: every op of tile IR is declared once, by `@op` on its type rule.

The table is what the printer, parser, verifier, evaluator, passes and docs read: passes ask an op's
`effects` and `traits`, never a list of names. The PTX emitter of an op has the same name in `ptx/`.

Effects: `read`, `write` (global memory), `shared_read`, `shared_write`, `sync` (barriers, fences,
asynchronous issue and waits), `control` (never removed). No effects: the op is pure.
Traits: `elementwise` (all tile operands and results share shape and layout), `commutative`, `cheap`
(worth recomputing instead of moving between layouts), `shape` (moves elements, computes nothing),
`terminator`, `structural` (has regions), `carries` (control flow that hands values on, see `core.edges`: as many as
it has results, which enter in its variadic operands and its regions' last arguments), `scheduled` (made by scheduling).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.ir.core import Op
    from tilejit.ir.types import Type


@dataclass
class OpDef:
    """One row: operand names (`x?` optional, `xs*` variadic), attribute names, and the rules."""

    name: str
    operands: tuple[str, ...]
    attrs: tuple[str, ...]
    doc: str
    infer: Callable[[Op], list[Type]]
    effects: frozenset[str]
    traits: frozenset[str]
    family: str
    evaluate: Callable[..., Any] | None = None

    @cached_property
    def pure(self) -> bool:
        """No effects."""
        return not self.effects

    @cached_property
    def carries(self) -> bool:
        """Whether it is control flow that hands values on."""
        return "carries" in self.traits

    @cached_property
    def variadic(self) -> bool:
        """Whether it takes any number of operands."""
        return any(n.endswith("*") for n in self.operands)

    @cached_property
    def fixed(self) -> int:
        """How many operands come before those of which there may be any number."""
        return next((i for i, n in enumerate(self.operands) if n.endswith("*")), len(self.operands))

    @cached_property
    def counts(self) -> tuple[int, float]:
        """The least and the greatest number of operands that the signature allows."""
        least = sum(not n.endswith(("?", "*")) for n in self.operands)
        return least, float("inf") if self.variadic else len(self.operands)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The attributes that every such op has."""
        return tuple(a for a in self.attrs if not a.endswith("?"))

    def meaning(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator that sets the numpy meaning; see `ir/evaluate.py` for its calling convention."""
        self.evaluate = fn
        return fn


OPS: dict[str, OpDef] = {}


def op(name: str, operands: str = "", attrs: str = "", effects: str = "",
       traits: str = "") -> Callable[[Callable[[Op], list[Type]]], OpDef]:
    """Declare an op; the decorated function is its type rule and its docstring the meaning.

    The rule takes the op (operands, attrs and regions set, results not yet) and returns the result
    types; it raises CompilationError with both sides named when the operands do not fit.
    """
    def declare(rule: Callable[[Op], list[Type]]) -> OpDef:
        assert name not in OPS, f"op {name} is declared twice"
        OPS[name] = OpDef(name, tuple(operands.split()), tuple(attrs.split()),
                          (rule.__doc__ or "").strip(), rule, frozenset(effects.split()),
                          frozenset(traits.split()), rule.__module__.rsplit(".", 1)[-1])
        return OPS[name]
    return declare
