"""Prepares the cases of the matmul benchmark on a GPU: fresh random operands, contenders, the check of the results."""
from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import matmul_ours as ours
import matmul_tuning
import peers_pallas
import peers_torch
import peers_triton
import peers_triton_build
import torch
from contender import Build, Contender, Work, rotate
from matmul_cases import FROM_MEMORY, Case

#: Error of a product that is rounded to bf16 once.
ROUNDED = 8e-3
#: Tensor cores add fp8 products in steps of 32 to sums cut to 13 bits: on average half of the last bit is lost a step.
FP8_STEP, FP8_LOSS = 32, 2.0 ** -14
#: Operands that are read once and again must not fit in the L2 cache (50 MB) meanwhile: bytes of all copies.
COLD = 400 << 20
BF16 = torch.bfloat16
#: Where operands live.
DEVICE = "cuda"


def matrix(rows: int, columns: int, dtype: Any = BF16, rows_first: bool = True) -> Any:
    """A random normal matrix in row- or column-major order, values as `dtype` has them."""
    shape = (rows, columns) if rows_first else (columns, rows)
    x = torch.empty(shape, device=DEVICE, dtype=dtype)
    for piece in x.split(4096):                                              # conversions need room for a piece only
        piece.copy_(torch.randn(piece.shape, device=DEVICE))
    return x if rows_first else x.T


def copies(x: Any) -> list[Any]:
    """x and clones of it until they are too many for the cache."""
    return [x] + [x.clone(memory_format=torch.preserve_format) for _ in range(min(7, COLD // x.nbytes))]


def checker(reference: Callable[[Any], Any], m: int) -> Callable[[Any], float]:
    """Error of a result: norm of the difference over the norm of the reference, on sampled rows; infinite for a NaN.

    `reference` gives rows of the result in float64 for row indices. One random row of every 32, so that no tile goes
    unseen; everything is searched for NaN, which the outputs hold before."""
    groups = torch.arange(0, m, 32, device=DEVICE)
    index = torch.minimum(groups + torch.randint(0, 32, groups.shape, device=DEVICE),
                          torch.tensor(m - 1, device=DEVICE)).unique()
    cache: list[Any] = []

    def error(result: Any) -> float:
        if not cache:
            cache.append(torch.cat([reference(i) for i in index.split(256)]))
        if not all(bool(piece.isfinite().all()) for piece in result.split(4096)):
            return float("inf")
        top = sum(float((result[i].double() - r).square().sum()) for i, r in
                  zip(index.split(256), cache[0].split(256)))
        return (top / float(cache[0].square().sum())) ** 0.5

    return error


def columns_of(b: Any) -> Callable[[Any], Any]:
    """x -> x @ b in float64, a slice of columns at a time."""
    step = max(1, (1 << 28) // b.shape[0])

    def product(x: Any) -> Any:
        return torch.cat([x @ b[:, j:j + step].double() for j in range(0, b.shape[1], step)], 1)

    return product


def contender(make: Callable[..., Callable[[], Any]], *args: Any) -> Build:
    """Our side as a contender; the last argument is the output."""
    return lambda: Contender(make(*args), args[-1])


def shown(make: Callable[..., Callable[[], Any]], *args: Any) -> Build:
    """The same, shown beside the peers and not judged as one."""
    return lambda: replace(contender(make, *args)(), judged=False)


def dense(case: Case) -> Work:
    """bf16 big, decode, few rows, split-K, majors, orders and ablation: one product, in one dtype."""
    a = matrix(case.m, case.k, rows_first=case.order[0] == "N")
    bs = [matrix(case.k, case.n, rows_first=case.order[1] == "N")]
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)
    bs = copies(bs[0]) if case.set in FROM_MEMORY else bs
    product = columns_of(bs[0])
    error = checker(lambda i: product(a[i].double()), case.m)

    def mine(way: Callable[..., Any] = ours.streamk if case.set in ("decode", "splitk") else ours.plain,
             into: Any = out, **more: Any) -> Contender:
        return Contender(rotate([way(a, b, into, **more) for b in bs]), into, judged=into is out)

    if case.set in ("majors", "orders"):
        return Work(mine, {"cublas": peers_torch.mm(a, bs, theirs)}, error, ROUNDED)
    if case.set == "ablation":
        steps = {f"tilejit {v.name}": shown(ours.launched, a, bs[0], v, theirs) for v in ours.ABLATION}
        return Work(mine, {**steps, "cublas": peers_torch.mm(a, bs, theirs)}, error, ROUNDED)
    def other_order() -> Contender:
        return peers_torch.mm(a, [b.contiguous() for b in bs], theirs)()

    peers: dict[str, Build] = {"cublas NT": peers_torch.mm(a, bs, theirs), "cublas NN": other_order,
                               "triton": lambda: peers_triton.tuned(case, a, bs, theirs, None)}
    if case.set == "bf16":
        peers["pallas"] = lambda: peers_pallas.matmul(a, bs[0].contiguous())
    if case.set == "decode":
        peers |= {"tilejit matmul": lambda: mine(ours.plain, theirs), "copy": peers_torch.copy()}
    if case.set == "splitk":
        peers |= {"tilejit matmul": lambda: mine(ours.plain, theirs)}
    return Work(mine, peers, error, ROUNDED)


def tuning(case: Case) -> Work:
    """The library's choice for a product against the best of many ways to run it."""
    from bursts import gpu_burst

    dtype = torch.float8_e4m3fn if case.dtype == "fp8" else BF16
    a, b = matrix(case.m, case.k, dtype), matrix(case.k, case.n, dtype, False)
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)
    product = columns_of(b)
    error = checker(lambda i: product(a[i].double()), case.m)
    bound = ROUNDED + (case.k / FP8_STEP * FP8_LOSS if case.dtype == "fp8" else 0.0)
    note = matmul_tuning.chosen(case.m, case.n, case.k, a.element_size())
    others = {} if case.dtype == "fp8" else {"stream-K": ours.streamk(a, b, theirs)}
    return Work(lambda: Contender(ours.plain(a, b, out), out, note=note),
                {"best of many": lambda: matmul_tuning.best(a, b, theirs, others, gpu_burst)}, error, bound)


def empty(*shape: int) -> Any:
    """A result, not yet poisoned."""
    return torch.empty(shape, device=DEVICE, dtype=BF16)


def eighth(case: Case) -> Work:
    """fp8 with a scale for each tensor."""
    a, b = matrix(case.m, case.k, torch.float8_e4m3fn), matrix(case.k, case.n, torch.float8_e4m3fn, False)
    sa, sb = (torch.rand(1, device=DEVICE) + 0.5 for _ in range(2))
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)
    product = columns_of(b)
    both = float(sa * sb)
    error = checker(lambda i: product(a[i].double()) * both, case.m)
    peers: dict[str, Build] = {"cublaslt": peers_torch.scaled_mm(a, b, sa[0], sb[0], theirs),
                               "triton": lambda: peers_triton.tuned(case, a, [b], theirs, sa * sb)}
    bound = ROUNDED + case.k / FP8_STEP * FP8_LOSS
    return Work(contender(ours.fp8, a, b, sa, sb, out), peers, error, bound)


def blocks(case: Case) -> Work:
    """fp8 with scales of 1x128 of A and 128x128 of B, beside our own product with one scale a tensor."""
    a, b = matrix(case.m, case.k, torch.float8_e4m3fn), matrix(case.k, case.n, torch.float8_e4m3fn, False)
    steps, wide = -(-case.k // 128), -(-case.n // 128)
    # A's scales lie column by column: what both libraries read fastest.
    padded = torch.rand(steps, -(-case.m // 4) * 4, device=DEVICE) + 0.5          # columns start at multiples of 16 bytes
    sa, sb = padded[:, :case.m].T, torch.rand(wide, steps, device=DEVICE) + 0.5
    one = torch.ones(1, device=DEVICE)
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)

    def rows(i: Any) -> Any:
        x = a[i].double() * sa[i].double().repeat_interleave(128, 1)[:, :case.k]
        width = max(128, (1 << 26) // case.k // 128 * 128)
        found = []
        for j in range(0, case.n, width):
            scale = sb[j // 128:(j + width) // 128].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
            piece = b[:, j:j + width].double()
            found.append(x @ (piece * scale.T[:case.k, :piece.shape[1]]))
        return torch.cat(found, 1)

    def own() -> Contender:
        return Contender(ours.fp8(a, b, one, one, theirs), judged=False, amount=case.flops)

    peers: dict[str, Build] = {
        "tilejit tensor-wise": own,
        "cublaslt tensor-wise": lambda: unchecked(peers_torch.scaled_mm(a, b, one[0], one[0], theirs)(), case.flops),
        "cublaslt block": peers_torch.block_scaled_mm(a, b, sa, sb.T, theirs)}
    return Work(contender(ours.fp8_block, a, b, sa, sb, out), peers, checker(rows, case.m), ROUNDED + 128 / FP8_STEP * FP8_LOSS)


def unchecked(c: Contender, flops: float) -> Contender:
    """A contender that does other work of the same size: shown, not judged, its result not compared."""
    return Contender(c.call, None, c.burst, False, c.note, amount=flops)


def batched(case: Case) -> Work:
    """Equal products, one after another in memory."""
    a = matrix(case.batch * case.m, case.k).view(case.batch, case.m, case.k)
    b = matrix(case.batch * case.n, case.k).view(case.batch, case.n, case.k).transpose(1, 2)
    out, theirs = empty(case.batch, case.m, case.n), empty(case.batch, case.m, case.n)
    flat = a.reshape(-1, case.k)

    def rows(i: Any) -> Any:
        return torch.einsum("rk,rkn->rn", flat[i].double(), b[i // case.m].double())

    error = checker(lambda i: torch.cat([rows(j) for j in i.split(32)]), case.batch * case.m)
    peers: dict[str, Build] = {"cublas NT": peers_torch.bmm(a, b, theirs),
                               "cublas NN": lambda: peers_torch.bmm(a, b.contiguous(), theirs)()}
    return Work(contender(ours.batched, a, b, out), peers, lambda y: error(y.reshape(-1, case.n)), ROUNDED)


def grouped(case: Case) -> Work:
    """Groups of rows, unequal, each with its own B: the products of a mixture of experts."""
    a = matrix(case.m, case.k)
    experts = len(case.rows)
    b = matrix(experts * case.n, case.k).view(experts, case.n, case.k).transpose(1, 2)
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)
    offsets = torch.tensor((0, *case.rows), device=DEVICE).cumsum(0).to(torch.int32)
    owner = torch.repeat_interleave(torch.arange(experts, device=DEVICE), torch.tensor(case.rows, device=DEVICE))

    def rows(i: Any) -> Any:
        result = torch.empty(len(i), case.n, device=DEVICE, dtype=torch.float64)
        for e in owner[i].unique().tolist():
            mine = owner[i] == e
            result[mine] = a[i[mine]].double() @ b[e].double()
        return result

    peers = peers_torch.grouped(a, b, case.rows, theirs)
    return Work(contender(ours.grouped, a, b, offsets, out), peers, checker(rows, case.m), ROUNDED)


def fused(case: Case) -> Work:
    """gelu(A @ B + bias), silu(A @ gate) * (A @ up), or A @ B + residual: peers write the product, then read it again."""
    a, b = matrix(case.m, case.k), matrix(case.k, case.n, rows_first=False)
    a.mul_(case.k ** -0.25), b.mul_(case.k ** -0.25)                         # products of about one: no flat activation
    bias = torch.randn(case.n, device=DEVICE).to(BF16)
    gated, plus = case.variant == "swiglu", matrix(case.m, case.n) if case.variant == "residual" else None
    width = case.n // 2 if gated else case.n
    middle = empty(case.m, case.n)
    out, theirs = empty(case.m, width), empty(case.m, width)
    product = columns_of(b)

    def rows(i: Any) -> Any:
        x = product(a[i].double())
        if gated:
            return torch.nn.functional.silu(x[:, :width]) * x[:, width:]
        if plus is not None:
            return x + plus[i].double()
        return torch.nn.functional.gelu(x + bias.double())

    def two(order: Any) -> Callable[[], Contender]:
        def call() -> Any:
            torch.mm(a, order, out=middle)
            if plus is not None:
                return peers_triton.add(middle, plus, theirs)
            return peers_triton.swiglu(middle, theirs) if gated else peers_triton.bias_gelu(middle, bias, theirs)

        return lambda: Contender(call, theirs)

    peers: dict[str, Build] = {
        "cublas NT + triton": two(b), "cublas NN + triton": lambda: two(b.contiguous())(),
        "tilejit plain": lambda: unchecked(Contender(ours.plain(a, b, middle)), case.flops),
        "cublas NT alone": lambda: unchecked(peers_torch.mm(a, [b], middle)(), case.flops)}
    if plus is not None:
        peers["cublas addmm"] = lambda: Contender(lambda: torch.addmm(plus, a, b, out=theirs), theirs)
        return Work(contender(ours.residual, a, b, plus, out), peers, checker(rows, case.m), 1.5e-2)
    if not gated:
        peers["cublaslt fused (tanh)"] = lambda: unchecked(Contender(
            lambda: torch._addmm_activation(bias, a, b, use_gelu=True)), case.flops)
    mine = contender(ours.swiglu, a, b, out) if gated else contender(ours.bias_gelu, a, b, bias, out)
    return Work(mine, peers, checker(rows, case.m), 1.5e-2)


def integers(case: Case) -> Work:
    """A weight of int8 with a scale a row, or of 4 bits with one for 128 of K, beside cuBLAS with the same in bf16."""
    a, four = matrix(case.m, case.k), case.variant == "int4"
    if four:
        low, high = (torch.randint(0, 16, (case.n, case.k // 2), device=DEVICE, dtype=torch.uint8) for _ in range(2))
        weight, scales = low | high << 4, (torch.rand(case.n, case.k // 128, device=DEVICE) + 0.5).to(BF16)
        spread = torch.stack((low, high), -1).view(case.n, case.k).to(BF16).sub_(8)
        spread *= scales.repeat_interleave(128, 1)
    else:
        weight = torch.randint(-127, 128, (case.n, case.k), device=DEVICE, dtype=torch.int8)
        scales = (torch.rand(case.n, device=DEVICE) + 0.5).to(BF16)
        spread = weight.to(BF16).mul_(scales[:, None])
    out, theirs = empty(case.m, case.n), empty(case.m, case.n)
    product = columns_of(spread.T)
    return Work(contender(ours.weights, a, weight, scales, out), {"cublas bf16": peers_torch.mm(a, [spread.T], theirs)},
                checker(lambda i: product(a[i].double()), case.m), ROUNDED)


def prepare(case: Case) -> Work:
    """The work of a case, on the current GPU."""
    makers = {"fp8": eighth, "fp8-block": blocks, "batched": batched, "grouped": grouped, "fused": fused,
              "tuning": tuning}
    variants = {"swiglu": fused, "residual": fused, "block": blocks, "int8": integers, "int4": integers}
    return (variants[case.variant] if case.set == "few" else makers.get(case.set, dense))(case)


def device() -> Any:
    """What the comparison asks of a GPU."""
    from bursts import gpu_burst, graph_burst
    from matmul_run import Device

    def free() -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def steady(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any] | None:
        try:
            return {name: graph_burst(call) for name, call in calls.items()}
        except Exception:                  # whatever a library does not allow in a capture; a broken GPU shows up next
            torch.cuda.synchronize()
            return None

    return Device(prepare, lambda x: x.fill_(float("nan")), torch.cuda.synchronize, gpu_burst, free,
                  peers_triton_build.ready, steady)
