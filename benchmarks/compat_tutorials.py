"""Cases of compat.py: Triton's tutorials, from the files of a Triton checkout (`--tutorials FOLDER`).

A tutorial is loaded without what it runs at its top level: its imports, functions, classes and plain settings stay.
"""
from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from compat import Check, Sizes

CASES: dict[str, Callable[[Sizes], Check]] = {}
#: calls that a setting of a tutorial may not make: they compute
_COMPUTES = {"randn", "rand", "empty", "zeros", "manual_seed", "run", "append", "print", "group_gemm_fn",
             "group_gemm_tma_fn"}


def case(make: Callable[[Sizes], Check]) -> Callable[[Sizes], Check]:
    """Register a case under its function's name."""
    CASES[make.__name__] = make
    return make


def tutorial(s: Sizes, name: str) -> Any:
    """The module of a tutorial's definitions. Raises FileNotFoundError."""
    path = next(iter(sorted(Path(s.tutorials).glob(f"{name}-*.py"))), None)
    if path is None:
        raise FileNotFoundError(f"no tutorial {name} in {s.tutorials}")
    tree = ast.parse(path.read_text())
    module = types.ModuleType(f"tutorial_{name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    for node in tree.body:
        calls = {getattr(n.func, "attr", getattr(n.func, "id", "")) for n in ast.walk(node) if isinstance(n, ast.Call)}
        if isinstance(node, (ast.Expr, ast.For, ast.Assert)) or isinstance(node, (ast.If, ast.Assign)) and calls & _COMPUTES:
            continue
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        try:
            exec(compile(ast.Module([node], []), str(path), "exec"), vars(module))
        except Exception:                               # settings of other chips, tools that only a benchmark needs
            continue
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("is_xpu", "is_hip")):
            setattr(module, node.name, lambda: False)       # some ask for chips in ways that only their drivers answer
    return module


def half(s: Sizes, *shape: int) -> torch.Tensor:
    return (s.randn(*shape) / 2).to(torch.float16)


@case
def vector_add(s: Sizes) -> Check:
    n = s.pick(5000, 1 << 24)
    return Check(tutorial(s, "01").add, lambda x, y: x + y, (s.randn(n), s.randn(n)), grads=False)


@case
def softmax(s: Sizes) -> Check:
    found = tutorial(s, "02")
    vars(found).setdefault("max_num_warps", 32)             # read from a device's properties that only some chips have
    vars(found).setdefault("WARP_SIZE", 32)
    return Check(found.softmax, lambda x: torch.softmax(x, 1), (s.randn(s.pick(30, 4096), s.pick(781, 4096)),),
                 grads=False)


def product(s: Sizes, name: str, function: str, turned: bool = False) -> Check:
    m, n, k = s.pick(200, 4096), s.pick(136, 4096), s.pick(96, 4096)
    ours = getattr(tutorial(s, name), function)
    return Check(ours, lambda a, b: a @ (b.T if turned else b), (half(s, m, k), half(s, *((n, k) if turned else (k, n)))),
                 grads=False)


@case
def matmul(s: Sizes) -> Check:
    return product(s, "03", "matmul")


@case
def matmul_leaky(s: Sizes) -> Check:
    found = tutorial(s, "03")
    check = product(s, "03", "matmul")
    check.ours = lambda a, b: found.matmul(a, b, activation="leaky_relu")
    check.reference = lambda a, b: F.leaky_relu(a @ b, 0.01)
    return check


@case
def dropout(s: Sizes) -> Check:
    n = s.pick(3000, 1 << 24)
    keep = s.randint(2, n).to(torch.int32)
    found = tutorial(s, "04")
    return Check(lambda x: found.dropout(x, keep, 0.5), lambda x: x * keep * 2, (s.randn(n),), grads=False)


@case
def seeded_dropout(s: Sizes) -> Check:
    """Compared with itself: the same seed twice, and about half of the numbers kept."""
    found = tutorial(s, "04")

    def kept(x: Any) -> Any:
        once = found.seeded_dropout(x.float(), 0.5, 123)
        share = float((once != 0).float().mean())
        assert 0.4 < share < 0.6, share
        assert not torch.equal(once, found.seeded_dropout(x.float(), 0.5, 7))
        return once

    return Check(kept, lambda x: torch.where(kept(x) != 0, 2 * x, 0), (s.randn(s.pick(3000, 1 << 24)),), grads=False)


@case
def layer_norm(s: Sizes) -> Check:
    m, n = s.pick(40, 4096), s.pick(300, 8192)
    found = tutorial(s, "05")
    return Check(lambda x, w, b: found.layer_norm(x, (n,), w, b, 1e-5), lambda x, w, b: F.layer_norm(x, (n,), w, b, 1e-5),
                 (s.randn(m, n), s.randn(n), s.randn(n)))


def attention(causal: bool) -> Callable[[Sizes], Check]:
    def make(s: Sizes) -> Check:
        found = tutorial(s, "06")
        b, h, t, d = s.pick(1, 4), s.pick(1, 32), s.pick(256, 4096), 64

        def reference(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.5)

        return Check(lambda q, k, v: found.attention(q, k, v, causal, 0.5, False), reference,
                     tuple(half(s, b, h, t, d) for _ in range(3)), 1e-2)

    return make


CASES["attention"] = attention(False)
CASES["attention_causal"] = attention(True)


@case
def libdevice_asin(s: Sizes) -> Check:
    found, n = tutorial(s, "07"), s.pick(5000, 1 << 24)

    def ours(x: Any) -> Any:
        out = torch.empty_like(x)
        found.asin_kernel[(-(-n // 1024),)](x, out, n, BLOCK_SIZE=1024)
        return out

    return Check(ours, torch.asin, (s.rand(n),), grads=False)


def groups(s: Sizes, function: str, turned: bool) -> Check:
    found = tutorial(s, "08")
    # whole tiles: its kernels mask nothing
    sizes = [(128, 128, 128), (256, 128, 256)] if not s.large else [(n, n, n) for n in (2048, 1024, 512, 256)]
    a = [half(s, m, k) for m, n, k in sizes]
    b = [half(s, *((n, k) if turned else (k, n))) for m, n, k in sizes]
    count = len(a)

    def reference(*x: Any) -> Any:
        return [p @ (q.T if turned else q) for p, q in zip(x[:count], x[count:])]

    return Check(lambda *x: getattr(found, function)(list(x[:count]), list(x[count:])), reference, (*a, *b), grads=False)


@case
def grouped_gemm(s: Sizes) -> Check:
    return groups(s, "group_gemm_fn", False)


@case
def grouped_gemm_tma(s: Sizes) -> Check:
    return groups(s, "group_gemm_tma_fn", True)


@case
def persistent_naive(s: Sizes) -> Check:
    check = product(s, "09", "matmul", True)
    found = tutorial(s, "09")
    check.ours = lambda a, b: found.matmul(a, b.T)
    return check


@case
def persistent_pointers(s: Sizes) -> Check:
    check = product(s, "09", "matmul_persistent", True)
    found = tutorial(s, "09")
    check.ours = lambda a, b: found.matmul_persistent(a, b.T)
    return check


def persistent(function: str) -> Callable[[Sizes], Check]:
    def make(s: Sizes) -> Check:
        check = product(s, "09", function, True)
        found = tutorial(s, "09")
        check.ours = lambda a, b: getattr(found, function)(a, b, False)
        return check

    return make


CASES["persistent_tma"] = persistent("matmul_tma")
CASES["persistent_tma_persistent"] = persistent("matmul_tma_persistent")
CASES["persistent_descriptor"] = persistent("matmul_descriptor_persistent")


@case
def dependent_launch(s: Sizes) -> Check:
    found, n = tutorial(s, "11"), s.pick(5000, 1 << 24)
    return Check(lambda x, y: found.add(x, y, launch_pdl=True), lambda x, y: x + y, (s.randn(n), s.randn(n)), grads=False)
