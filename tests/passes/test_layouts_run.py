"""Random programs with two load orders, folds, transposes and loops: emulated PTX agrees with the evaluator.

Every value ends in a layout of somebody's choosing, so these programs are full of conversions of all kinds.
"""
import random
import struct

import numpy as np
import pytest
from placement import check
from test_layouts import matrix

from tilejit import schedule
from tilejit.emulator import Program
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.layouts import assign_layouts
from tilejit.ptx.emit import emit
from tilejit.ptx.metadata import PointerParam

HEAD = ("kernel @g(%p: ptr<int32> {{divisible=16}}, %q: ptr<int32> {{divisible=16}}, %o: ptr<int32> {{divisible=16}}, "
        "%w: ptr<int32> {{divisible=16}}, %n: int32 {{divisible=4}}, %m: int32 {{divisible=4}}) "
        "{{num_warps={warps}, num_stages=2}} {{\n")


def fold(rng, k, a, rows, cols):
    """Lines that fold %a along an axis, and an expression that spreads the result again."""
    axis = rng.randint(0, 1)
    lines = [f"  %r{k} = reduce {a} {{axis={axis}}} : int32[{rows if axis else cols}] {{(%x{k}: int32, %y{k}: int32)",
             f"    %z{k} = {rng.choice(['add', 'maximum'])} %x{k}, %y{k}", f"    yield %z{k}", "  }",
             f"  %e{k} = expand_dims %r{k} {{axis={axis}}}", f"  %f{k} = mulhi %e{k}, %e{k}",
             f"  %g{k} = add %e{k}, %f{k}"]
    return lines, f"broadcast %{rng.choice('eg')}{k} {{shape=({rows}, {cols})}}"


def step(rng, k, values, rows, cols):
    """Lines that define %vk from two earlier values."""
    a, b, shape = rng.choice(values), rng.choice(values), f"({rows}, {cols})"
    kind = rng.choice(["binary", "binary", "transpose", "shuffle", "fold", "fold", "pair", "narrow", "compare",
                       "cheap", "loop"])
    if kind == "binary":
        lines, last = [], f"{rng.choice(['add', 'sub', 'minimum', 'maximum'])} {a}, {b}"
    elif kind == "transpose":
        lines, last = [f"  %t{k} = trans {a} {{order=(1, 0)}}"], f"reshape %t{k} {{shape={shape}}}"
    elif kind == "shuffle":
        lines = [f"  %u{k} = reshape {a} {{shape=({rows // 2}, {cols}, 2)}}",
                 f"  %t{k} = trans %u{k} {{order=(2, 0, 1)}}"]
        last = f"reshape %t{k} {{shape={shape}}}"
    elif kind == "fold":
        lines, last = fold(rng, k, a, rows, cols)
    elif kind == "pair":
        lines, last = [f"  %j{k} = join {a}, {b}", f"  %l{k}, %h{k} = split %j{k}"], f"sub %l{k}, %h{k}"
    elif kind == "narrow":
        lines = [f"  %c{k} = cast {a} {{dtype={rng.choice(['int8', 'int16', 'int64'])}}}", f"  %d{k} = not %c{k}"]
        last = f"cast %d{k} {{dtype=int32}}"
    elif kind == "compare":
        lines, last = [f'  %c{k} = cmp {a}, {b} {{pred="lt"}}'], f"select %c{k}, {b}, {a}"
    elif kind == "cheap":
        lines, last = [f"  %c{k} = add %sr, %tc"], f"xor %c{k}, {a}"
    else:
        tile = f"int32[{rows}x{cols}]"
        lines = [f"  %lo{k} = const {{value=0}} : int32", f"  %hi{k} = const {{value=3}} : int32",
                 f"  %by{k} = const {{value=1}} : int32",
                 f"  %f{k} = for %lo{k}, %hi{k}, %by{k}, {a} : {tile} {{(%i{k}: int32, %w{k}: {tile})",
                 f"    %x{k} = sub {b}, %w{k}", f"    yield %x{k}", "  }"]
        last = f"not %f{k}"
    return [*lines, f"  %v{k} = {last}"]


def program(rng, rows, cols, warps):
    """Text of a random kernel: loads of p by rows and of q by columns, steps, stores to o and w."""
    lines = [matrix("s", "%p", rows, cols, "%n"), matrix("t", "%q", rows, cols, "%m", transposed=True),
             "  %v0 = load %s", "  %v1 = load %t", f"  %v2 = load {rng.choice(['%s', '%t'])}"]
    count = 3 + rng.randint(2, 9)
    for k in range(3, count):
        lines += step(rng, k, [f"%v{i}" for i in range(k)], rows, cols)
    for name, base, offset, value in (("so2", "%o", "%so", count - 1), ("to2", "%w", "%to", rng.randrange(count))):
        lines += [f"  %{name} = splat {base} {{shape=({rows}, {cols})}}", f"  %{name}p = ptr_add %{name}, {offset}",
                  f"  store %{name}p, %v{value}"]
    return HEAD.format(warps=warps) + "\n".join(lines) + "\n  return\n}\n"


def aligned(values):
    """A copy that starts on 16 bytes."""
    room = np.zeros(values.size + 4, values.dtype)
    start = -room.ctypes.data // 4 % 4
    out = room[start:start + values.size]
    out[:] = values
    return out


@pytest.mark.parametrize("rows, cols", [(16, 32), (32, 32), (8, 128), (64, 4), (2, 8)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_random_programs_run_as_they_mean(rows, cols, warps):
    for seed in range(6):
        rng = random.Random(f"{rows} {cols} {warps} {seed}")
        text = program(rng, rows, cols, warps)
        n, m = cols + rng.choice([0, 4]), rows + rng.choice([0, 4])
        n, m = n + -n % 4, m + -m % 4
        data = [np.random.default_rng(seed).integers(-9, 9, size).astype(np.int32) for size in (rows * n, cols * m)]
        data += [np.zeros_like(x) for x in data]
        want, got = [x.copy() for x in data], [aligned(x) for x in data]
        evaluate(parse_function(text), 1, dict(zip("pqow", want), n=n, m=m))
        fn = parse_function(text)
        assign_layouts(fn)
        verify(fn)
        check(fn)
        ptx, meta = emit(schedule.run(fn))
        params = [struct.pack("<Q", got["pqow".index(p.arg)].ctypes.data) if isinstance(p, PointerParam)
                  else struct.pack("<i", {"n": n, "m": m}[p.expr[1]]) for p in meta.params]
        Program(ptx).launch((1, 1, 1), meta.num_threads, params, meta.shared_bytes, memory=got).check()
        for a, b in zip(want, got):
            np.testing.assert_array_equal(a, b, err_msg=text)
