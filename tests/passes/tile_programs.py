"""Random tile programs in IR text, for the property tests of passes.

All tiles are int32[4x16]; `%v0, %v1, ...` are the values so far, starting from ranges and the
arguments n and m.
"""
from hypothesis import strategies as st

BINARY = ["add", "sub", "mul", "idiv", "irem", "and", "or", "xor", "minimum", "maximum", "shr", "shl"]
SETUP = """\
  %r = arange {start=0, end=16}
  %s = arange {start=8, end=12}
  %re = expand_dims %r {axis=0}
  %v0 = broadcast %re {shape=(4, 16)}
  %se = expand_dims %s {axis=1}
  %v1 = broadcast %se {shape=(4, 16)}
  %v2 = splat %n {shape=(4, 16)}
  %v3 = splat %m {shape=(4, 16)}"""
NUMBERS = [0, 1, 2, 3, 4, 8, 12, 16, -1, -8]


def _step(draw, k: int) -> list[str]:
    """Lines that define %vk from two earlier values."""
    a, b = (draw(st.integers(0, k - 1)) for _ in "ab")
    kind = draw(st.sampled_from([*BINARY, "const", "cmp", "hint", "trans", "reshape", "neg", "abs"]))
    if kind == "const":
        return [f"  %v{k} = const {{value={draw(st.sampled_from(NUMBERS))}}} : int32[4x16]"]
    if kind == "cmp":
        pred = draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
        return [f'  %c{k} = cmp %v{a}, %v{b} {{pred="{pred}"}}', f"  %v{k} = select %c{k}, %v{a}, %v{b}"]
    if kind in ("hint", "neg", "abs"):
        return [f"  %v{k} = {kind} %v{a}"]
    if kind == "trans":
        return [f"  %t{k} = trans %v{a} {{order=(1, 0)}}", f"  %v{k} = reshape %t{k} {{shape=(4, 16)}}"]
    if kind == "reshape":
        return [f"  %t{k} = reshape %v{a} {{shape=(8, 8)}}", f"  %v{k} = reshape %t{k} {{shape=(4, 16)}}"]
    return [f"  %v{k} = {kind} %v{a}, %v{b}"]


@st.composite
def straight_lines(draw):
    """A body without control flow."""
    lines = [SETUP]
    for k in range(4, 4 + draw(st.integers(1, 8))):
        lines += _step(draw, k)
    return "\n".join(lines)


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for text in lines for line in text.split("\n")]


@st.composite
def structured(draw):
    """A body with loops and branches around random steps; its last value is %vN. Returns (body, N)."""
    lines, k = [SETUP, "  %one = const {value=1} : int32", "  %three = const {value=3} : int32",
                "  %zero = const {value=0} : int32", '  %cond = cmp %n, %m {pred="lt"}',
                "  %yes = const {value=true} : int1"], 4
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["step", "step", "for", "if"]))
        if kind == "step":
            lines += _step(draw, k)
            k += 1
            continue
        x, y = (draw(st.integers(0, k - 1)) for _ in "xy")
        inner: list[str] = []
        if kind == "for":
            top = draw(st.sampled_from(["zero", "one", "three", "m"]))
            first = k
            k += 2                                   # %v(first), %v(first+1): the carried values inside
            for _ in range(draw(st.integers(1, 3))):
                inner += _step(draw, k)
                k += 1
            p, q = draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))
            lines.append(f"  %v{k}, %v{k + 1} = for %zero, %{top}, %one, %v{x}, %v{y} : int32[4x16], int32[4x16] "
                         f"{{(%i: int32, %v{first}: int32[4x16], %v{first + 1}: int32[4x16])")
            lines += [*_indent(inner), f"    yield %v{p}, %v{q}", "  }"]
            hidden = range(first, k)
            k += 2
        else:
            cond = draw(st.sampled_from(["cond", "yes"]))
            first = k
            for _ in range(draw(st.integers(0, 2))):
                inner += _step(draw, k)
                k += 1
            p = draw(st.integers(0, k - 1))
            lines.append(f"  %v{k} = if %{cond} : int32[4x16] {{")
            lines += [*_indent(inner), f"    yield %v{p}", "  } {", f"    yield %v{x}", "  }"]
            hidden = range(first, k)
            k += 1
        # names from inside a region stay usable outside: they then stand for an argument
        lines += [f"  %v{h} = add %v2, %v{h % 4}" for h in hidden]
    return "\n".join(lines), k - 1
