"""vprintf: what a kernel prints appears at once, lane after lane (CUDA C++ Programming Guide, "Formatted Output")."""
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
def _vprintf(c: Cluster, s: Site, e: External) -> None:
    """The format lies in the module's variables, the values in each lane's local memory."""
    status, form, values = e.operands
    decoded = c.launch.program.decoded
    bank, size, base = decoded.variables.tobytes(), decoded.local_bytes, decoded.variables.ctypes.data
    for lane in lanes_of(s.mask):
        at, start = c.value(s.warp, form, lane) - base, c.value(s.warp, values, lane)
        if start >> 56 != k.LOCAL_WINDOW >> 56 or not 0 <= at < len(bank):
            raise c.stop("operands", "vprintf: the format is no module variable, or the values are not in local memory",
                         s.pc, s.warp)
        first = (s.warp * 32 + lane) * size
        data = c.local[first + (start & k.OFFSET_MASK):first + size].tobytes()
        text = formatted(bank[at:bank.index(b"\0", at)].decode(), data)
        print(text, end="")
        c.regs[s.warp, status, lane] = len(_CONVERSION.findall(text))


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
        if kind == "a":                      # float.hex() without the zeros that C leaves out
            return re.sub(r"\.?0*p", "p", value.hex())
        return m.group().replace("l", "") % value

    return _CONVERSION.sub(one, form)
