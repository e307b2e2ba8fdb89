"""Builds and runs small PTX programs for the tests."""
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import numpy as np

from tilejit.emulator import Program

#: numpy dtype -> (load type, register class)
TYPES = {"int8": ("s8", "b16"), "uint8": ("u8", "b16"), "int16": ("s16", "b16"), "uint16": ("u16", "b16"),
         "int32": ("s32", "b32"), "uint32": ("u32", "b32"), "int64": ("s64", "b64"), "uint64": ("u64", "b64"),
         "float16": ("b16", "b16"), "bfloat16": ("b16", "b16"), "float32": ("f32", "f32"),
         "float64": ("f64", "f64")}
HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def pointer(a: np.ndarray) -> bytes:
    """A kernel parameter: the array's address."""
    return int(a.ctypes.data).to_bytes(8, "little")


def u32(value: int) -> bytes:
    """A 32-bit parameter."""
    return (value & 0xFFFFFFFF).to_bytes(4, "little")


def kernel(body: str, params: Sequence[str] = (), header: str = "", directives: str = "") -> str:
    """A module with one entry `k`; `params` are declarations."""
    return (f"{HEADER}{header}\n.visible .entry k({', '.join(params)})\n{directives}\n{{\n"
            ".reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<160>;\n"
            f".reg .f64 %fd<16>;\n{body}\nret;\n}}\n")


def assembles(text: str, tmp: str = "/dev/null") -> None:
    """Check the text with ptxas where there is one."""
    if shutil.which("ptxas"):
        r = subprocess.run(["ptxas", "-arch=sm_90a", "-o", tmp, "-"], input=text, capture_output=True, text=True)
        assert r.returncode == 0, r.stderr + text


def lanes(body: str, inputs: Sequence[np.ndarray], out: str, assemble: bool = False) -> np.ndarray:
    """Run `body` once per element: inputs are in %a0, %a1, ..., the result is %d of dtype `out`."""
    n = len(inputs[0])
    arrays = [np.ascontiguousarray(x) for x in inputs]
    result = np.zeros(n, np.dtype("uint16") if out == "bfloat16" else out)
    kinds = [TYPES[a.dtype.name] for a in arrays] + [TYPES[out]]
    text = "".join(f".reg .{cls} %a{i};\n" for i, (_, cls) in enumerate(kinds[:-1]))
    text += f".reg .{kinds[-1][1]} %d;\nmov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mov.u32 %r62, %tid.x;\n"
    text += f"mad.lo.u32 %r60, %r60, %r61, %r62; setp.ge.u32 %p15, %r60, {n}; @%p15 ret;\n"
    for i, (a, (load, _)) in enumerate(zip(arrays, kinds)):
        text += (f"ld.param.u64 %rd30, [x{i}]; mad.wide.u32 %rd30, %r60, {a.itemsize}, %rd30;\n"
                 f"ld.global.{load} %a{i}, [%rd30];\n")
    store = kinds[-1][0] if kinds[-1][0][0] in "bf" else "u" + kinds[-1][0][1:]
    text += (f"{body}\nld.param.u64 %rd30, [y]; mad.wide.u32 %rd30, %r60, {result.itemsize}, %rd30;\n"
             f"st.global.{store} [%rd30], %d;")
    text = kernel(text, [f".param .u64 x{i}" for i in range(len(arrays))] + [".param .u64 y"])
    if assemble:
        assembles(text)
    Program(text).launch((-(-n // 128),), 128, [pointer(a) for a in (*arrays, result)],
                         memory=[*arrays, result]).check()
    return result
