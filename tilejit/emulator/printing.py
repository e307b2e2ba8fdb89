"""What the driver gives kernels (CUDA C++ Programming Guide, "Formatted Output", "Assertion"): vprintf prints at
once, lane by lane."""
from __future__ import annotations

import re
import struct

from tilejit.emulator.decode import External
from tilejit.emulator.execute import executes
from tilejit.emulator.machine import Cluster, Site, lanes_of
from tilejit.emulator.vm import codes as k

_CONVERSION = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?(l{0,2})([diuxXcfeEgGa]))")
#: struct codes by (is long long, conversion is signed).
_CODES = {(False, True): "i", (False, False): "I", (True, True): "q", (True, False): "Q"}


@executes("call")
def _assertfail(c: Cluster, s: Site, e: External) -> None:
    """The driver's text, `file.py:7: kernel: block: [0,0,0], thread: [3,0,0] Assertion `positive` failed.`, without
    the block."""
    lane = next(iter(lanes_of(s.mask)))
    message, file, line, function, _ = (c.value(s.warp, r, lane) for r in e.operands)
    said, at, name = (_text(c, s, address) for address in (message, file, function))
    place = f"{at}:{line & 0xFFFFFFFF}: {name}: thread: {32 * s.warp + lane}"
    raise c.stop("assertion", f"{place} Assertion `{said}` failed", s)


@executes("call.uni")
def _vprintf(c: Cluster, s: Site, e: External) -> None:
    status, form, values = e.operands
    size = c.launch.program.decoded.local_bytes
    for lane in lanes_of(s.mask):
        line, start = _text(c, s, c.value(s.warp, form, lane)), c.value(s.warp, values, lane)
        if start >> 56 != k.LOCAL_WINDOW >> 56:
            raise c.stop("operands", "vprintf: the values are not in local memory", s)
        first = (s.warp * 32 + lane) * size
        data = c.local[first + (start & k.OFFSET_MASK):first + size].tobytes()
        text = formatted(line, data)
        print(text, end="")
        c.regs[s.warp, status, lane] = len(_CONVERSION.findall(text))


def _text(c: Cluster, s: Site, address: int) -> str:
    variables = c.launch.program.decoded.variables
    at, bank = address - variables.ctypes.data, variables.tobytes()
    if not 0 <= at < len(bank):
        raise c.stop("operands", "a format or text of a call is no module variable", s)
    return bank[at:bank.index(b"\0", at)].decode()


def formatted(form: str, data: bytes) -> str:
    """A C format with its values, which lie in `data` as in a C struct."""
    at = 0

    def one(m: re.Match[str]) -> str:
        nonlocal at
        if m.group() == "%%":
            return "%"
        kind = m.group(2)
        code = "d" if kind in "feEgGa" else _CODES[m.group(1) == "ll", kind in "dic"]
        size = struct.calcsize(code)
        at = -(-at // size) * size
        (value,) = struct.unpack_from("<" + code, data, at)
        at += size
        if kind == "a":  # float.hex() without the zeros that C leaves out
            return re.sub(r"\.?0*p", "p", value.hex())
        return m.group().replace("l", "") % value

    return _CONVERSION.sub(one, form)
