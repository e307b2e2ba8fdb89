"""Random tile programs in the language that tilejit and Triton share, as source text with a description of its arrays.

Numbers are chosen so that results are exact whatever the order of sums and whether products are fused into them: floats
are small integers, and a value's `bound` says how large it can be. What is not exact (exp, division, ...) is only stored,
and compared within a bound. `Case.text` is the same for every way of running it.
"""
from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: arrays of the arguments: name -> dtype; each has ELEMENTS of them
INPUTS = {"i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "u32": "uint32", "i64": "int64",
          "f16": "float16", "b16": "bfloat16", "f32": "float32", "f64": "float64"}
ELEMENTS = 16384
PROGRAMS = 2
#: integers up to this are exact in the type
EXACT = {"float16": 2 ** 11, "bfloat16": 2 ** 8, "float32": 2 ** 24, "float64": 2 ** 53}
SIZES = (16, 32, 64, 128)
BITS = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32, "uint32": 32, "int64": 64}
BYTES = {**{n: bits // 8 for n, bits in BITS.items()}, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
#: functions that programs may call
HELPERS = """@jit
def add_both(a, b):
    return a + b
@jit
def greater(a, b):
    return tl.maximum(a, b)
@jit
def either(a, b):
    return a | b
@jit
def affine(a, b, c, d):
    return c * a, c * b + d
@jit
def later(a, i, b, j):
    take = (b > a) | ((b == a) & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)
@jit
def both_ways(a, n, TWICE: tl.constexpr):
    low = a - n
    if TWICE:
        return low + a, a
    return low, a
"""


@dataclass(frozen=True)
class Var:
    """A value: `bound` of a float's size; `exact` is False for what rounds."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bound: int = 0
    exact: bool = True

    @property
    def numel(self) -> int:
        """Elements."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating type."""
        return self.dtype in EXACT


@dataclass(frozen=True)
class Output:
    """An array that the program stores to: PROGRAMS times `numel` elements."""

    name: str
    dtype: str
    numel: int
    exact: bool


@dataclass
class Case:
    """A program and all that is needed to run it."""

    seed: int
    body: list[str]
    outputs: list[Output]
    scalars: dict[str, int]
    offsets: dict[str, int]                 #: elements by which each array starts after a multiple of 256 bytes
    warps: int
    more: dict[str, Any] = field(default_factory=dict)     #: options of tilejit's own that must not change a bit

    @property
    def text(self) -> str:
        """The kernel, `main`."""
        args = ", ".join([*INPUTS, *(o.name for o in self.outputs), *self.scalars])
        body = "\n".join(["@jit", f"def main({args}):", *("    " + line for line in self.body)]) + "\n"
        needed = [f for f in HELPERS.split("@jit\n")[1:] if re.search(rf"\b{f[4:f.index('(')]}\b", body)]
        return "".join("@jit\n" + f for f in needed) + body


class Writer:
    """Writes one program."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.seed, self.count, self.depth = seed, 0, 0
        self.lines: list[str] = ["pid = tl.program_id(0)"]
        self.vars: list[Var] = []
        self.outputs: list[Output] = []
        self.aligned: set[str] = set()      # arrays that descriptors view

    # -- choices and names -----------------------------------------------------------------------------------------
    def pick(self, items: Any) -> Any:
        return self.random.choice(list(items))

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def let(self, text: str, dtype: str, shape: tuple[int, ...], bound: int = 0, exact: bool = True) -> Var:
        """Bind a new name to an expression."""
        self.count += 1
        v = Var(f"v{self.count}", dtype, shape, bound, exact)
        self.emit(f"{v.name} = {text}")
        self.vars.append(v)
        return v

    def some(self, want: Callable[[Var], bool] = lambda v: True) -> Var | None:
        """A value of a kind, mostly a recent one."""
        found = [v for v in self.vars if v.exact and want(v)]
        return None if not found else self.pick(found[-6:] if self.random.random() < 0.7 else found)

    def shape(self) -> tuple[int, ...]:
        kind = self.random.random()
        if kind < 0.4:
            return (self.pick(SIZES),)
        rows = self.pick((4, 8, 16, 32, 64))
        return rows, self.pick([n for n in SIZES if n * rows <= 4096])

    # -- sources ---------------------------------------------------------------------------------------------------
    def load(self) -> Var:
        """Elements of an array: whole, strided, masked, gathered, or through a descriptor."""
        array, shape = self.pick(INPUTS), self.shape()
        dtype = INPUTS[array]
        bound = 8 if dtype in EXACT else 0
        start = self.pick((0, 1, 16, 33, 512))
        kind = self.random.random()
        if kind < 0.2 and len(shape) == 2 and shape[1] * BYTES[dtype] >= 16:
            self.aligned.add(array)
            width = self.pick((64, 128, 96))
            rows = self.pick(("n", "40", "17"))
            return self.let(f"tl.make_tensor_descriptor({array}, [{rows}, {width}], [{width}, 1], [{shape[0]}, {shape[1]}])"
                            f".load([pid * {self.pick((0, 8))}, {self.pick((0, 16, 32))}])", dtype, shape, bound)
        index = self.index(shape, self.pick((1, 1, 2)))
        if kind < 0.35 and (i := self.some(lambda v: v.dtype == "int32" and v.shape == shape)):
            return self.let(f"tl.load({array} + ({i.name} & {ELEMENTS - 1}))", dtype, shape, bound)
        where = f"{array} + pid * {self.pick((0, 64))} + {start} + {index}"
        if kind < 0.6:
            limit = self.pick(("n", "m", str(self.pick((1, 7, 40)))))
            lane = f"tl.arange(0, {shape[-1]})" + ("[None, :]" if len(shape) == 2 else "")
            mask = f"{lane} < {limit}"
            if len(shape) == 2:
                mask = f"({mask}) & (tl.arange(0, {shape[0]})[:, None] < {self.pick(('n', 'm'))})"
            return self.let(f"tl.load({where}, mask={mask}, other={self.pick((0, 1, 3))})", dtype, shape, bound)
        return self.let(f"tl.load({where})", dtype, shape, bound)

    def index(self, shape: tuple[int, ...], stride: int = 1) -> str:
        """Offsets of a tile in rows of its own width."""
        if not shape:
            return "0"
        if len(shape) == 1:
            return f"tl.arange(0, {shape[0]})" + (f" * {stride}" if stride > 1 else "")
        return f"tl.arange(0, {shape[0]})[:, None] * {shape[1]} + tl.arange(0, {shape[1]})[None, :]"

    def range(self) -> Var:
        n = self.pick(SIZES)
        return self.let(f"tl.arange(0, {n}) {self.pick('+-*^')} {self.pick(('n', 'm', '3', 'pid'))}", "int32", (n,))

    # -- elementwise -----------------------------------------------------------------------------------------------
    def partner(self, a: Var) -> tuple[str, str, int] | None:
        """Another operand for a: its text, dtype and bound; of the same type, or a number."""
        if self.random.random() < 0.3:
            number = self.pick((1, 2, 3, 5))
            return str(float(number) if a.is_float and self.random.random() < 0.5 else number), a.dtype, number
        c = self.some(lambda v: v.dtype == a.dtype and (v.shape == a.shape or not v.shape or len(a.shape) == 2 and
                                                        v.shape in ((a.shape[1],), (a.shape[0],))))
        if c is None:
            return None
        text = c.name
        if len(a.shape) == 2 and len(c.shape) == 1:
            text += "[None, :]" if c.shape[0] == a.shape[1] else "[:, None]"
        return text, c.dtype, c.bound

    def binary(self) -> Var | None:
        a = self.some(lambda v: v.dtype != "int1")
        other = self.partner(a) if a else None
        if a is None or other is None:
            return None
        text, _, bound = other
        if a.is_float:
            op = self.pick(("+", "-", "*", "max", "min"))
            result = a.bound + bound if op in "+-" else a.bound * bound if op == "*" else max(a.bound, bound)
            if result >= EXACT[a.dtype]:
                return None
        else:
            op = self.pick(("+", "-", "*", "&", "|", "^", "//", "%", "<<", ">>", "max", "min"))
            result = 0
        if op in ("max", "min"):
            return self.let(f"tl.{op}imum({a.name}, {text}).to(tl.{a.dtype})", a.dtype, a.shape, result)
        if op in ("<<", ">>"):
            return self.let(f"{a.name} {op} ({text} & 7)", a.dtype, a.shape)
        if op in ("//", "%"):
            return self.let(f"{a.name} {op} (({text} & 15) + 1)", a.dtype, a.shape)
        return self.let(f"{a.name} {op} {text}", a.dtype, a.shape, result)

    def unary(self) -> Var | None:
        a = self.some(lambda v: v.dtype != "int1")
        if a is None:
            return None
        if a.is_float or self.random.random() < 0.5:
            kinds = ["-{}", "tl.abs({})"] if a.dtype not in ("uint32",) else ["-{}"]
            return self.let(self.pick(kinds).format(a.name), a.dtype, a.shape, a.bound)
        return self.let(f"~{a.name}", a.dtype, a.shape)

    def cast(self) -> Var | None:
        a = self.some(lambda v: v.dtype != "int1")
        if a is None:
            return None
        if a.is_float:
            to = self.pick([t for t in (*EXACT, "int32", "int64") if a.bound < EXACT.get(t, 2 ** 31)])
            return self.let(f"{a.name}.to(tl.{to})", to, a.shape, a.bound if to in EXACT else 0)
        if self.random.random() < 0.3:
            to = self.pick(EXACT)
            return self.let(f"({a.name} & 7).to(tl.{to})", to, a.shape, 7)
        to = self.pick(BITS)
        return self.let(f"{a.name}.to(tl.{to})", to, a.shape)

    def compare(self) -> Var | None:
        a = self.some(lambda v: v.dtype != "int1")
        other = self.partner(a) if a else None
        if a is None or other is None:
            return None
        return self.let(f"{a.name} {self.pick(('<', '<=', '>', '>=', '==', '!='))} {other[0]}", "int1", a.shape)

    def select(self) -> Var | None:
        c = self.some(lambda v: v.dtype == "int1")
        a = self.some(lambda v: c is not None and v.shape == c.shape and v.dtype != "int1")
        other = self.partner(a) if a else None
        if a is None or c is None or other is None:
            return None
        return self.let(f"tl.where({c.name}, {a.name}, {other[0]})", a.dtype, a.shape, max(a.bound, other[2]))

    def inexact(self) -> Var | None:
        a = self.some(lambda v: v.dtype == "float32" and v.bound < 64)
        if a is None:
            return None
        text = self.pick(("tl.exp({} * 0.0625)", "tl.sqrt(tl.abs({}) + 1.0)", "{} / 3.0", "tl.sigmoid({} * 0.25)",
                          "tl.log(tl.abs({}) + 2.0)", "tl.sin({} * 0.125)", "tl.exp2({} * 0.125)"))
        return self.let(text.format(a.name), "float32", a.shape, 0, False)

    # -- shapes, sums, products ------------------------------------------------------------------------------------
    def reshape(self) -> Var | None:
        a = self.some(lambda v: len(v.shape) > 0 and v.dtype != "int1")
        if a is None:
            return None
        n = a.numel
        kind = self.random.random()
        if kind < 0.4 and len(a.shape) == 2:
            return self.let(f"tl.trans({a.name})", a.dtype, (a.shape[1], a.shape[0]), a.bound)
        if kind < 0.5 and n <= 2048:
            return self.let(f"tl.reshape(tl.join({a.name}, {a.name} + {a.name}), ({2 * n},))", a.dtype, (2 * n,),
                            2 * a.bound) if 2 * a.bound < EXACT.get(a.dtype, 2 ** 31) else None
        if kind < 0.6:
            return self.let(f"tl.flip({a.name}, {len(a.shape) - 1})", a.dtype, a.shape, a.bound)
        rows = self.pick([r for r in (4, 8, 16, 32) if n % r == 0 and n // r >= 8] or [1])
        shape: tuple[int, ...] = (rows, n // rows) if rows > 1 and len(a.shape) == 1 else (n,)
        return self.let(f"tl.reshape({a.name}, {shape})", a.dtype, shape, a.bound)

    def reduction(self) -> Var | None:
        a = self.some(lambda v: len(v.shape) > 0 and v.dtype != "int1")
        if a is None:
            return None
        axis = self.random.randrange(len(a.shape))
        shape = a.shape[:axis] + a.shape[axis + 1:]
        kind = self.pick(("sum", "sum", "max", "min", "argmax", "cumsum", "xor"))
        grown = a.bound * a.shape[axis]
        if kind in ("sum", "cumsum") and a.is_float and grown >= EXACT[a.dtype]:
            return None
        if kind == "sum":
            return self.let(f"tl.sum({a.name}, {axis}).to(tl.{a.dtype})", a.dtype, shape, grown)
        if kind == "cumsum":
            return self.let(f"tl.cumsum({a.name}, {axis}).to(tl.{a.dtype})", a.dtype, a.shape, grown)
        if kind == "argmax":
            return self.let(f"tl.argmax({a.name}, {axis})", "int32", shape)
        if kind == "xor" and not a.is_float:
            return self.let(f"tl.xor_sum({a.name}, {axis}).to(tl.{a.dtype})", a.dtype, shape)
        return self.let(f"tl.{'max' if kind == 'max' else 'min'}({a.name}, {axis}).to(tl.{a.dtype})", a.dtype, shape,
                        a.bound)

    def dot(self) -> Var | None:
        a = self.some(lambda v: len(v.shape) == 2 and min(v.shape) >= 16 and (v.is_float and v.bound <= 8 and v.bound > 0))
        if a is None:
            return None
        m, k = a.shape
        n = self.pick((16, 32, 64))
        array = {"float16": "f16", "bfloat16": "b16", "float32": "f32", "float64": "f64"}[a.dtype]
        c = self.let(f"tl.load({array} + {self.pick((0, 16, 48))} + {self.index((k, n))})", a.dtype, (k, n), 8)
        return self.let(f"tl.dot({a.name}, {c.name})", "float64" if a.dtype == "float64" else "float32", (m, n), a.bound * 8 * k)

    def mixed(self) -> Var | None:
        """Two types in one operation: the result's is that of Triton's (and C's) usual conversions."""
        a = self.some(lambda v: v.dtype != "int1")
        b = self.some(lambda v: a is not None and v.dtype != "int1" and v.is_float == a.is_float and v.dtype != a.dtype and
                      v.shape in (a.shape, ()))
        if a is None or b is None:
            return None
        if a.is_float:
            to = next(t for t in ("float64", "float32", "float16") if t in (a.dtype, b.dtype))
            if a.bound + b.bound >= EXACT[to]:
                return None
            return self.let(f"{a.name} {self.pick('+-')} {b.name}", to, a.shape, a.bound + b.bound)
        one, two = sorted((a, b), key=lambda v: (BITS[v.dtype], v.dtype[0] == "u"))
        to = two.dtype
        if self.random.random() < 0.3:
            return self.let(f"tl.where({a.name} > 3, {a.name}, {b.name})", to, a.shape)
        return self.let(f"{a.name} {self.pick('+-*&|^')} {b.name}", to, a.shape)

    def combined(self) -> Var | None:
        """Reductions and scans by a function, over one tile or two."""
        a = self.some(lambda v: len(v.shape) > 0 and v.dtype in ("int32", "int64", "uint32"))
        if a is None:
            return None
        axis = self.random.randrange(len(a.shape))
        shape = a.shape[:axis] + a.shape[axis + 1:]
        b = self.some(lambda v: v.shape == a.shape and v.dtype == a.dtype) or a
        kind, reverse = self.random.random(), self.pick((", reverse=True", "", ""))
        if kind < 0.25:
            return self.let(f"tl.reduce({a.name}, {axis}, {self.pick(('add_both', 'greater', 'either'))})", a.dtype, shape)
        if kind < 0.5:
            text = f"tl.associative_scan({a.name}, {axis}, {self.pick(('add_both', 'greater', 'either'))}{reverse})"
            return self.let(text, a.dtype, a.shape)
        if kind < 0.75:
            return self.let(f"tl.associative_scan(({a.name}, {b.name}), {axis}, affine{reverse})[{self.pick('01')}]", a.dtype,
                            a.shape)
        lane = f"tl.arange(0, {a.shape[axis]})" + ("" if len(a.shape) == 1 else ("[:, None]", "[None, :]")[axis])
        return self.let(f"tl.reduce(({a.name}, tl.broadcast_to({lane}, {list(a.shape)})), {axis}, later)[1]", "int32", shape)

    def moved(self) -> Var | None:
        """What moves elements about: sort, gather, histogram, interleave, split, three dimensions."""
        a = self.some(lambda v: len(v.shape) > 0 and v.dtype not in ("int1", "float64"))
        if a is None:
            return None
        kind, last, n = self.pick(range(6)), len(a.shape) - 1, a.numel
        if kind == 0 and not a.is_float:
            return self.let(f"tl.sort({a.name}{self.pick(('', ', descending=True'))})", a.dtype, a.shape)
        if kind == 1:
            axis = self.random.randrange(len(a.shape))
            i = self.some(lambda v: v.dtype == "int32" and v.shape == a.shape)
            if i is not None:
                return self.let(f"tl.gather({a.name}, {i.name} & {a.shape[axis] - 1}, {axis})", a.dtype, a.shape, a.bound)
        if kind == 2 and a.dtype == "int32" and last == 0:
            bins = self.pick((16, 64))
            return self.let(f"tl.histogram({a.name} & {self.pick((7, 15))}, {bins})", "int32", (bins,))
        if kind == 3 and n <= 2048:
            return self.let(f"tl.interleave({a.name}, -{a.name})", a.dtype, (*a.shape[:-1], 2 * a.shape[-1]), a.bound)
        if kind == 4 and a.shape[-1] >= 32:
            shape = (*a.shape[:-1], a.shape[-1] // 2)
            return self.let(f"tl.split(tl.reshape({a.name}, {(*shape, 2)}))[{self.pick('01')}]", a.dtype, shape, a.bound)
        if kind == 5 and n >= 256:
            cube = self.pick([(4, n // 32, 8), (2, 8, n // 16), (n // 64, 4, 16)])
            order = self.pick([(1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)])
            turned = tuple(cube[i] for i in order)
            text = f"tl.permute(tl.reshape({a.name}, {cube}), {order})"
            if self.random.random() < 0.5:
                return self.let(f"tl.reshape({text}, {a.shape})", a.dtype, a.shape, a.bound)
            axis = self.random.randrange(3)
            return self.let(f"tl.max({text}, {axis}).to(tl.{a.dtype})", a.dtype, turned[:axis] + turned[axis + 1:], a.bound)
        return None

    def call(self) -> Var | None:
        """A function of two results, one of them by a constant's branch."""
        a = self.some(lambda v: v.dtype in ("int32", "int64", "float32") and v.bound < 2 ** 20)
        if a is None:
            return None
        twice, which = self.pick((True, False)), self.pick((0, 1))
        return self.let(f"both_ways({a.name}, {self.pick(('n', '3'))}, {twice})[{which}]", a.dtype, a.shape,
                        a.bound if which else 2 * a.bound + 64)

    def product_loop(self) -> Var | None:
        """A product in blocks of K, as matmuls have it: loads in a loop that can be pipelined."""
        array, m, n, kk = self.pick(("f16", "b16")), self.pick((16, 32, 64, 128)), self.pick((16, 32, 64)), self.pick((16, 32))
        width = 6 * kk
        if m * n > 4096 or m * width > ELEMENTS:
            return None
        trips = self.pick(((3, "3"), (4, "k"), (6, "6")))
        acc = self.let(f"tl.zeros(({m}, {n}), tl.float32)", "float32", (m, n), 64 * kk * trips[0])
        self.emit(f"for t{self.count} in range({trips[1]}):")
        t = f"t{self.count}"
        if self.random.random() < 0.5:
            self.aligned.add(array)
            left = f"tl.make_tensor_descriptor({array}, [{m}, {width}], [{width}, 1], [{m}, {kk}]).load([0, {t} * {kk}])"
            right = f"tl.make_tensor_descriptor({array}, [{width}, {n}], [{n}, 1], [{kk}, {n}]).load([{t} * {kk}, 0])"
        else:
            left = (f"tl.load({array} + tl.arange(0, {m})[:, None] * {width} + "
                    f"({t} * {kk} + tl.arange(0, {kk}))[None, :])")
            right = f"tl.load({array} + ({t} * {kk} + tl.arange(0, {kk}))[:, None] * {n} + tl.arange(0, {n})[None, :])"
        self.emit(f"    {acc.name} = tl.dot({left}, {right}, {acc.name})" if self.random.random() < 0.5 else
                  f"    {acc.name} += tl.dot({left}, {right})")
        return acc

    def inner(self, acc: Var, known: int) -> tuple[str, int]:
        """What a loop or branch did since it began, as an operand beside acc: text and bound."""
        made = [v for v in self.vars[known:] if v.exact and v.dtype != "int1" and v.name[0] == "v"]
        if not made:
            v = self.some(lambda v: v.dtype == acc.dtype and v.shape in (acc.shape, ()) and v.name != acc.name)
            return (v.name, v.bound) if v else ("1", 1)
        v, text, bound = made[-1], made[-1].name, made[-1].bound
        if v.shape != acc.shape:
            for axis in reversed(range(len(v.shape))):
                text = f"tl.max({text}, {axis})"
        if acc.is_float and not v.is_float:
            return f"({text} & 3).to(tl.{acc.dtype})", 3
        if acc.is_float and bound >= EXACT[acc.dtype]:
            return "1", 1
        return f"{text}.to(tl.{acc.dtype})", bound

    # -- statements ------------------------------------------------------------------------------------------------
    def loop(self) -> Var | None:
        """A loop that carries one value."""
        start = self.some(lambda v: v.dtype != "int1")
        if start is None:
            return None
        acc = self.let(f"{start.name} + 0", start.dtype, start.shape, start.bound)
        trips, known = self.pick(((3, "3"), (4, "k"), (2, "2"), (4, "k"))), len(self.vars)
        counter = Var(f"t{self.count}", "int32", ())
        if self.random.random() < 0.25:
            self.emit(f"{counter.name} = {self.pick(('0', 'pid - pid'))}")
            self.emit(f"while {counter.name} < {trips[1]}:")
            self.emit(f"    {counter.name} += 1")
        else:
            self.emit(f"for {counter.name} in {self.pick(('range', 'range', 'tl.range', 'tl.static_range'))}({trips[1]}):"
                      if trips[1] != "k" else f"for {counter.name} in range(k):")
        self.depth += 1
        self.vars.append(counter)
        for _ in range(self.random.randint(0, 3)):
            self.step()
        text, bound = self.inner(acc, known)
        final = start.bound + bound * trips[0]
        if acc.is_float and final >= EXACT[acc.dtype]:
            self.emit(f"{acc.name} = tl.maximum({acc.name}, {text}).to(tl.{acc.dtype})")
            final = max(start.bound, bound)
        else:
            op = "+" if acc.is_float else self.pick("+-^*")
            self.emit(f"{acc.name} = {acc.name} {op} {text}")
        self.depth -= 1
        del self.vars[known:]
        self.vars.remove(acc)
        self.vars.append(Var(acc.name, acc.dtype, acc.shape, final))
        return self.vars[-1]

    def branch(self) -> Var | None:
        """An `if` on a scalar that changes one value."""
        start = self.some(lambda v: v.dtype != "int1")
        if start is None:
            return None
        acc = self.let(f"{start.name} + 0", start.dtype, start.shape, start.bound)
        scalar = self.some(lambda v: v.shape == () and v.dtype in ("int32", "float32"))
        bounds = [start.bound]
        self.emit(f"if {scalar.name if scalar else 'pid'} > {self.pick(('0', 'm', '2'))}:")
        for last in self.pick(((True,), (False, True))):
            known = len(self.vars)
            self.depth += 1
            for _ in range(self.random.randint(0, 2)):
                self.step()
            text, bound = self.inner(acc, known)
            bounds.append(bound)
            self.emit(f"{acc.name} = tl.{self.pick(('maximum', 'minimum'))}({acc.name}, {text}).to(tl.{acc.dtype})")
            self.depth -= 1
            del self.vars[known:]
            if not last:
                self.emit("else:")
        self.vars.remove(acc)
        self.vars.append(Var(acc.name, acc.dtype, acc.shape, max(bounds)))
        return self.vars[-1]

    def step(self) -> None:
        kinds = [self.load, self.load, self.range, self.binary, self.binary, self.binary, self.unary, self.cast,
                 self.compare, self.select, self.reshape, self.reduction, self.reduction, self.dot, self.inexact, self.mixed,
                 self.combined, self.moved, self.moved, self.call]
        if self.depth < 2:
            kinds += [self.loop, self.branch]
        if not self.depth:
            kinds.append(self.product_loop)
        self.pick(kinds)()

    def store(self, v: Var) -> None:
        dtype = "int8" if v.dtype == "int1" else v.dtype
        name = f"o{len(self.outputs)}"
        value = f"{v.name}.to(tl.int8)" if v.dtype == "int1" else v.name
        self.outputs.append(Output(name, dtype, v.numel, v.exact))
        where = f"{name} + pid * {v.numel} + {self.index(v.shape)}"
        if len(v.shape) == 1 and v.dtype in ("int32", "uint32") and self.random.random() < 0.3:
            how = self.pick(("add", "max", "min", "and", "or", "xor"))
            mask = self.pick(("", "", f", mask=tl.arange(0, {v.numel}) < {self.pick(('n', 'm'))}"))
            self.emit(f"tl.atomic_{how}({name} + pid * {v.numel} + ({value} & {v.numel - 1}).to(tl.int32), {value}{mask})")
        elif len(v.shape) == 2 and v.shape[1] * BYTES[dtype] >= 16 and v.exact and self.random.random() < 0.3:
            self.aligned.add(name)
            self.emit(f"tl.make_tensor_descriptor({name}, [{PROGRAMS * v.shape[0]}, {v.shape[1]}], [{v.shape[1]}, 1], "
                      f"[{v.shape[0]}, {v.shape[1]}]).store([pid * {v.shape[0]}, 0], {value})")
        elif v.shape and self.random.random() < 0.3:
            lane = f"tl.arange(0, {v.shape[-1]})" + ("[None, :]" if len(v.shape) == 2 else "")
            self.emit(f"tl.store({where}, {value}, mask={lane} < {self.pick(('n', 'm'))})")
        else:
            self.emit(f"tl.store({where}, {value})")

    def case(self) -> Case:
        """The whole program."""
        self.load()
        for _ in range(self.random.randint(4, 14)):
            self.step()
        words = re.findall(r"v\d+", " ".join(self.lines))
        unused = [v for v in self.vars if words.count(v.name) == 1]      # what nothing else shows
        for v in [*reversed(unused), *reversed(self.vars)][:5]:
            self.store(v)
        names = [*INPUTS, *(o.name for o in self.outputs)]
        offsets = {n: 0 if n in self.aligned else self.pick((0, 0, 0, 1, 2, 3, 8, 16)) for n in names}
        more = self.pick(({"num_warps": 8}, {"num_warps": 1}, {"num_stages": 1}, {"num_stages": 4},
                          {"warp_specialize": False}, {"num_warps": 2, "num_stages": 2}))
        return Case(self.seed, self.lines, self.outputs, {"n": self.pick((1, 16, 31, 48)), "m": self.pick((3, 8, 20)),
                                                          "k": self.pick((0, 1, 4))},
                    offsets, self.pick((1, 2, 4, 4, 8)), more)


def program(seed: int) -> Case:
    """The program of a seed."""
    return Writer(seed).case()
