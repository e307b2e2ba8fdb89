"""What is asked of attention: settings (`Case`), arrays beside q, k and v (`Extras`), and what kernels get of them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels.attention.scores import LOG2E, Band, Lists, Mods, Options, Pages, Rows, Sequences
from tilejit.records import dataclass

WHAT = "attention"
#: Widths of heads of kernels: what is between is padded by TMA, which reads zeros.
WIDTHS = (64, 128, 192, 256)
LEAST_KEYS = 16
#: Windows of so many blocks have a loop of their own for the blocks that nothing masks.
WIDE_WINDOW = 12


@dataclass(frozen=True)
class Case:
    """Settings; see `attention`. exact: no approximations but those of fp32. max_queries: of a sequence, where those
    have lengths of their own. page: keys of a page, 0 without. block: queries and keys of blocks that lists name."""

    scale: float
    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    score: Any = None
    gradient: Any = None
    mask: Any = None
    dropout: float | None = None
    seed: int = 0
    max_queries: int = 0
    max_keys: int = 0
    page: int = 0
    deterministic: bool = False
    exact: bool = True
    block: tuple[int, int] | None = None

    @property
    def low(self) -> bool:
        return self.left is not None or self.chunk is not None

    @property
    def high(self) -> bool:
        return self.right is not None

    @property
    def changes(self) -> bool:
        return self.softcap is not None or self.score is not None or self.dropout is not None


class Extras(NamedTuple):
    """Arrays, or what is known of them; None where there is none."""

    sinks: Any = None
    slopes: Any = None
    prefix: Any = None
    cu_queries: Any = None
    cu_keys: Any = None
    used: Any = None
    table: Any = None
    blocks: Any = None
    descales: tuple[Any, Any, Any] | None = None
    aux: tuple[Any, ...] = ()


def flat(extras: Extras) -> tuple[Any, ...]:
    return (*extras[:8], *(extras.descales or ()), *extras.aux)


def filled(extras: Extras, items: Sequence[Any]) -> Extras:
    behind = 8 if extras.descales is None else 11
    return Extras(*items[:8])._replace(descales=tuple(items[8:behind]) or None, aux=tuple(items[behind:]))


def options(case: Case, extras: Extras, infos: tuple[ArrayInfo | None, ...]) -> Options:
    table, blocks = infos[6], infos[7]
    return Options(
        Band(case.left, case.right, case.chunk, extras.prefix),
        Mods(case.softcap, extras.slopes, case.score, case.gradient, case.mask, extras.aux, case.dropout,
             None if case.dropout is None else case.seed, tilejit.language.constexpr(case.exact)),
        Sequences(extras.cu_queries, extras.cu_keys, extras.used),
        None if table is None else Pages(extras.table, table.strides[0], tilejit.language.constexpr(case.page)),
        None if blocks is None else Lists(extras.blocks, *(s if n > 1 else 0 for s, n in zip(
            blocks.strides[:3], blocks.shape[:3]))),
        extras.sinks, extras.descales)


def with_rows(opts: Options, case: Case, k: Any, v: Any, ik: ArrayInfo, iv: ArrayInfo) -> Options:
    """The same, where pages are of keys that fill no blocks: those are looked up one by one."""
    if opts.pages is None or case.page % LEAST_KEYS == 0:
        return opts
    keys, values = (Rows(x, i.strides[0], i.strides[1], i.strides[2], i.shape[3]) for x, i in ((k, ik), (v, iv)))
    return opts._replace(pages=opts.pages._replace(keys=keys, values=values))


def keys_of_block(case: Case, keys: int) -> int:
    if not case.page or case.page % LEAST_KEYS:
        return keys
    return max(n for n in range(LEAST_KEYS, keys + 1, LEAST_KEYS) if case.page % n == 0)


def factor(case: Case, extras: Extras) -> float:
    """What kernels multiply products by: scores are powers of two then, unless something changes them before."""
    changed = case.softcap is not None or case.score is not None or extras.slopes is not None
    return case.scale if changed else case.scale * LOG2E


def split_of(case: Case, block: int) -> int:
    """Which blocks are not masked (SPLIT of kernels): 0 none, 1 those at one end, 2 those in the middle."""
    if not case.low and case.mask is None:
        return 1
    return 2 if case.mask is None and (case.left or case.chunk or 0) >= WIDE_WINDOW * block else 0


def width(d: int) -> int:
    return next(w for w in WIDTHS if d <= w)


def check(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo, case: Case, infos: tuple[ArrayInfo | None, ...]) -> tuple[int, ...]:
    """(batch, queries, keys, heads, kv heads, d, dv); queries and keys: the most of a sequence. Raises LaunchError for
    arrays that do not go together."""
    lang = tilejit.language
    packed = infos[3] is not None
    axes = 3 if packed else 4
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) != (4 if case.page and name != "q" else axes):
            shape = "[rows, heads, d]" if packed else "[batch, sequence, heads, d]"
            raise tilejit.LaunchError(f"{WHAT}: {name} must be {shape}, found shape {list(x.shape)}")
        if x.dtype not in (lang.float16, lang.bfloat16, lang.float8e4nv) or x.dtype != q.dtype:
            raise tilejit.LaunchError(f"{WHAT}: q, k and v must all be fp16 or all bf16, found {name} of {x.dtype}"
                                      f"{'' if name == 'q' else f' and q of {q.dtype}'}")
        readable(name, x)
    *lead, heads, d = q.shape
    kv_heads, dv = k.shape[-2], v.shape[-1]
    batch = infos[3].shape[0] - 1 if packed else lead[0]
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != d or not packed and not case.page and k.shape[0] != batch:
        raise tilejit.LaunchError(f"{WHAT}: q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not go "
                                  "together: expected q [batch, queries, heads, d], k [batch, keys, kv heads, d] "
                                  "and v [batch, keys, kv heads, dv]")
    if not kv_heads or heads % kv_heads:
        raise tilejit.LaunchError(f"{WHAT}: {heads} query heads cannot share {kv_heads} heads of keys: expected a "
                                  "divisor")
    queries = case.max_queries if packed else lead[1]
    keys = case.max_keys if packed or case.page else k.shape[1]
    if not k.shape[-3] and queries:
        raise tilejit.LaunchError(f"{WHAT}: there are no keys: expected one at least")
    if not 0 < max(d, dv) <= WIDTHS[-1]:
        raise tilejit.LaunchError(f"{WHAT}: heads of {d} and {dv} elements; at most {WIDTHS[-1]} are possible")
    _check_extras(batch, heads, kv_heads, infos)
    return batch, queries, keys, heads, kv_heads, d, dv


def _check_extras(batch: int, heads: int, kv_heads: int, infos: tuple[ArrayInfo | None, ...]) -> None:
    wanted = (("sinks", (heads,), None), ("alibi", (heads,), "fp32"), ("prefix", (batch,), "int32"),
              ("cu_queries", (batch + 1,), "int32"), ("cu_keys", (batch + 1,), "int32"),
              ("used_keys", (batch,), "int32"))
    for (name, shape, dtype), x in zip(wanted, infos):
        if x is not None and (x.shape != shape or dtype not in (None, x.dtype.name) or x.strides != (1,) != x.shape):
            raise tilejit.LaunchError(f"{WHAT}: {name} must be a contiguous {dtype or 'float'} array {list(shape)}, "
                                      f"found {list(x.shape)} of {x.dtype}")


def readable(name: str, x: ArrayInfo) -> None:
    if 0 in x.shape:
        return
    lines = [s * x.dtype.bytes for s, n in zip(x.strides[:-1], x.shape[:-1]) if n > 1]
    if x.strides[-1] != 1 and x.shape[-1] > 1 or any(s % 16 for s in lines) or x.address % 16:
        raise tilejit.LaunchError(f"{WHAT}: {name} needs a contiguous last dimension, an address and strides that "
                                  f"are multiples of 16 bytes; found strides {list(x.strides)} of {x.dtype}: copy it")


def pitches(x: ArrayInfo) -> tuple[int, ...]:
    """Strides as TMA takes them: those of single elements do not matter, and may not be odd."""
    whole = max([s for s, n in zip(x.strides, x.shape) if n > 1] or [8])
    return (*(s if n > 1 else max(16 // x.dtype.bytes, whole) for s, n in zip(x.strides[:-1], x.shape[:-1])), 1)


def blocks_of(x: ArrayInfo, rows: int, columns: int) -> tilejit.TensorDescriptor:
    """A descriptor of [batch, sequence, heads, d], or [rows, heads, d], with blocks [1, rows, 1, columns]."""
    shape, strides = x.shape, pitches(x)
    if len(shape) == 3:
        shape, strides = (1, *shape), (max(8, shape[0] * strides[0]), *strides)
    return tilejit.TensorDescriptor.template(x, shape, strides, (1, rows, 1, columns))
