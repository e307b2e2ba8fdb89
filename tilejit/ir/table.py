"""The op table: every op of tile IR is declared once, by `@op` on its type rule."""
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilejit.records import dataclass

if TYPE_CHECKING:
    from tilejit.ir.core import Op
    from tilejit.ir.types import Type
    from tilejit.layout.linear import LinearLayout

EFFECTS = {
    "read": "reads global memory",
    "write": "writes global memory",
    "shared_read": "reads shared memory",
    "shared_write": "writes shared memory",
    "sync": "barriers, fences, asynchronous issue and waits",
    "control": "never removed for want of a use, unless it is `optional`",
}
TRAITS = {
    # what it computes
    "elementwise": "all tile operands and results share shape and layout",
    "commutative": "its operands may change places",
    "idempotent": "of a value and itself it gives that value",
    "cheap": "worth recomputing instead of moving between layouts",
    "keeps_sign": "not negative if its operands are not, short of an overflow",
    "shape": "moves elements, computes nothing",
    "spreads": "repeats elements of a smaller operand",
    "permutes": "the operand's elements under other coordinates, register for register",
    "identity": "its operand, element for element",
    "program": "differs from program to program",
    "query": "asks a descriptor for what it describes",
    # memory
    "same_memory": "its result points into the memory that operand 0 points into",
    "atomic": "an atomic through pointers",
    "tma": "loads, stores or combines a block through the descriptor that is operand 0",
    # control
    "structural": "has regions",
    "terminator": "ends a block",
    "carries": "control flow that hands values on (`core.edges`): as many as it has results, which enter in its "
               "variadic operands and in its regions' last arguments",
    "loop": "runs its regions again and again",
    "optional": "stays only if something needs what it computes, holds or hands on, its effects notwithstanding",
    # threads and registers
    "packs": "takes several elements of a thread at a time",
    "collective": "the threads of a program exchange values for it",
    "barrier": "begins with a barrier of all threads of the role",
    "registers": "names registers anew or makes constants",
    "as_asked": "makes no registers of numbers and addresses that nobody asks for",
    "takes_pending": "may take accumulators that products are in flight to",
    # scheduling
    "scheduled": "made by scheduling",
    "readies": "readies a loop's products where it stands before one: copies for the loop are issued ahead of it",
    "fills": "starts an asynchronous copy into a slot of the buffer that is operand 0",
    "cp_async": "a copy by all threads, 4 to 16 bytes each, that arrives with `async_arrive`",
    "generic": "its threads touch its buffers, and no fence of the proxies of its own follows",
    "own_buffer": "nobody but this CTA's roles, and the copies they await, touches its buffers",
    "pieces": "asks for one piece of operand 1 after the other",
    "cluster_phase": "all CTAs of a cluster come together for it: its last operand is the parity of a barrier's phase",
    "tensor_map": "uses the tensor map of a descriptor",
}
LAYOUTS = {
    "same": "all tile operands and results have one",
    "access": "that of operand 0, a tile of pointers, for all operands and results",
    "maps": "`backward` gives the operand's from the result's, `forward` the result's from the operand's",
    "follows": "operands have that of operand 0, results what `forward` makes of it",
    "picks": "operand 0 and the results have one; the other operands, which their threads read from shared memory, any",
    "flow": "one along each of `core.edges`",
    "block": "any: the block lies in shared memory on its way; 16 bytes a thread where nothing else decides",
    "product": "the accumulator's and the result's is that of the unit that computes it",
    "free": "whichever is asked for",
    "set": "said by its types: it is made after layouts are assigned",
    "none": "it has no tiles",
}
REGIONS = {
    "": "none",
    "for": "one: an induction variable and the carried values in, the next carried values out",
    "while": "two over the carried values: the first ends in `condition`, the second in `yield`",
    "if": "two without arguments that yield the results",
    "map": "one that takes `pack` scalars, elements of each operand, and yields as many of each result",
    "fold": "one that folds two groups of scalars, an element of each variadic operand, into one",
    "copies": "one without arguments that yields the tiles it loads",
    "warps": "run by some of the warps or threads only",
}


#: The types of an op's results; None: it has none.
Rule = Callable[["Op"], "list[Type] | None"]


@dataclass
class OpDef:
    """One row: operand names (`x?` optional, `xs*` variadic), attribute names, and the rules."""

    name: str
    operands: tuple[str, ...]
    attrs: tuple[str, ...]
    doc: str
    infer: Rule
    effects: frozenset[str]
    traits: frozenset[str]
    family: str
    layout: str
    regions: str = ""
    host: str = ""
    scratch: Callable[[Op], int] | None = None
    forward: Callable[[Op, LinearLayout], LinearLayout | None] | None = None
    backward: Callable[[Op, LinearLayout], LinearLayout | None] | None = None
    evaluate: Callable[..., Any] | None = None

    @cached_property
    def pure(self) -> bool:
        return not self.effects

    @cached_property
    def carries(self) -> bool:
        return "carries" in self.traits

    @cached_property
    def variadic(self) -> bool:
        return any(n.endswith("*") for n in self.operands)

    @cached_property
    def fixed(self) -> int:
        return next((i for i, n in enumerate(self.operands) if n.endswith("*")), len(self.operands))

    @cached_property
    def after(self) -> int:
        return len(self.operands) - self.fixed - 1 if self.variadic else 0

    @cached_property
    def counts(self) -> tuple[int, float]:
        least = sum(not n.endswith(("?", "*")) for n in self.operands)
        return least, float("inf") if self.variadic else len(self.operands)

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(a for a in self.attrs if not a.endswith("?"))

    def meaning(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        self.evaluate = fn
        return fn


class _Table(dict[str, OpDef]):
    """Op name -> definition, filled by `tilejit.ir.ops` when somebody first asks for a missing one."""

    def __missing__(self, name: str) -> OpDef:
        import tilejit.ir.ops  # noqa: F401

        if name not in self:
            raise KeyError(name)
        return self[name]


OPS: dict[str, OpDef] = _Table()


def op(name: str, operands: str = "", attrs: str = "", effects: str = "", traits: str = "", layout: str = "",
       **rules: Any) -> Callable[[Rule], OpDef]:
    """Declare an op; the decorated function is its type rule and its docstring the meaning."""
    def declare(rule: Rule) -> OpDef:
        has = frozenset(traits.split())
        kind = layout or ("same" if "elementwise" in has else "set" if "scheduled" in has else
                          "flow" if has & {"carries", "terminator"} else "")
        define = OpDef(name, tuple(operands.split()), tuple(attrs.split()), (rule.__doc__ or "").strip(), rule,
                       frozenset(effects.split()), has, rule.__module__.rsplit(".", 1)[-1], kind, **rules)
        wrong = [*(f"effect {e}" for e in define.effects - EFFECTS.keys()),
                 *(f"trait {t}" for t in has - TRAITS.keys()),
                 *([f"layout {kind}"] if kind not in LAYOUTS else []),
                 *([f"regions {define.regions}"] if define.regions not in REGIONS else [])]
        if wrong or name in OPS:
            raise ValueError(f"op {name}: {', '.join(wrong) or 'declared twice'}")
        OPS[name] = define
        return define
    return declare
