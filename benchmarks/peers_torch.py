"""cuBLAS and cuBLASLt as peers, through torch, with preallocated outputs wherever torch takes them."""
from __future__ import annotations

from typing import Any

from contender import Absent, Build, Contender, rotate


def mm(a: Any, bs: list[Any], out: Any) -> Build:
    """torch.mm with out=; `bs` are equal copies of B, used in turn."""
    import torch

    return lambda: Contender(rotate([lambda b=b: torch.mm(a, b, out=out) for b in bs]), out)


def bmm(a: Any, b: Any, out: Any) -> Build:
    """torch.bmm with out=."""
    import torch

    return lambda: Contender(lambda: torch.bmm(a, b, out=out), out)


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Build:
    """cuBLASLt's fp8 product with fast accumulation; with `out` if this torch takes it."""
    import torch

    def build() -> Contender:
        def into() -> Any:
            return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=True, out=out)

        def fresh() -> Any:
            return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=True)

        try:
            into()
            return Contender(into, out)
        except (TypeError, RuntimeError):
            fresh()
            return Contender(fresh, note="output allocated by torch")

    return build


def block_scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Build:
    """cuBLASLt's fp8 product with scales of 1x128 of A [M, K/128] and 128x128 of B [K/128, N/128].

    Where they lie in memory is cuBLASLt's choice: A's scales column by column; B's with columns padded to four."""
    import torch

    def padded(x: Any) -> Any:
        """The same matrix column by column, each column's start a multiple of four elements."""
        rows, columns = x.shape
        space = torch.zeros(columns, -(-rows // 4) * 4, device=x.device, dtype=x.dtype)
        space[:, :rows] = x.T
        return space.T[:rows]

    def build() -> Contender:
        by_columns = scale_a.T.contiguous().T
        failed = ""
        for layout in (padded, lambda x: x.T.contiguous().T, lambda x: x.contiguous()):
            for fast in (True, False):
                def call(sb: Any = layout(scale_b), fast: bool = fast) -> Any:
                    return torch._scaled_mm(a, b, by_columns, sb, out_dtype=out.dtype, use_fast_accum=fast)
                try:
                    call()
                    torch.cuda.synchronize()
                    return Contender(call, note=f"fast accumulation {fast}, output allocated by torch")
                except (RuntimeError, ValueError) as error:
                    failed = failed or str(error).split("\n")[0]
        raise Absent(f"torch._scaled_mm takes no such scales: {failed[:100]}")

    return build


def grouped(a: Any, b: Any, rows: tuple[int, ...], out: Any) -> dict[str, Build]:
    """Three ways to multiply groups of rows of a [T, K] with b [E, K, N]: torch._grouped_mm, a loop, padding."""
    import torch

    ends = torch.tensor(rows, device=a.device).cumsum(0).to(torch.int32)
    starts = [sum(rows[:i]) for i in range(len(rows))]
    pieces = [(a[s:s + r], b[i], out[s:s + r]) for i, (s, r) in enumerate(zip(starts, rows)) if r]

    def loop() -> Any:
        for x, w, y in pieces:
            torch.mm(x, w, out=y)
        return out

    def pad() -> Contender:
        height = max(rows)
        if height * len(rows) > 4 * sum(rows):
            raise Absent(f"padding would multiply the work by {height * len(rows) / sum(rows):.1f}")
        wide = torch.zeros(len(rows), height, a.shape[1], device=a.device, dtype=a.dtype)
        for i, (s, r) in enumerate(zip(starts, rows)):
            wide[i, :r] = a[s:s + r]
        result = torch.empty(len(rows), height, b.shape[2], device=a.device, dtype=a.dtype)
        torch.bmm(wide, b, out=result)
        return Contender(lambda: torch.bmm(wide, b, out=result), result, note="already padded",
                         view=lambda y: torch.cat([y[i, :r] for i, r in enumerate(rows)]))

    return {"torch grouped": lambda: Contender(lambda: torch._grouped_mm(a, b, offs=ends)),
            "cublas loop": lambda: Contender(loop, out), "cublas padded": pad}


def copy(gigabytes: float = 1.0) -> Build:
    """A device-to-device copy: what the memory gives. Counts the bytes read and the bytes written."""
    import torch

    def build() -> Contender:
        source = torch.empty(int(gigabytes * 2 ** 30), dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        return Contender(lambda: target.copy_(source), judged=False, unit="GB/s", amount=2.0 * source.nbytes)

    return build
