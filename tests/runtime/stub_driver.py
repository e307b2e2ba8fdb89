"""The stub driver (`libcuda_stub.c`) as Python sees it: what it remembers and is told, and a torch of few names.

torch is stood for by a module with the names that tilejit looks for in `sys.modules`.
"""
from __future__ import annotations

import ctypes
import itertools
import sys
import types
from math import prod

STREAM = 0x77


class Tensor:
    """A torch tensor of zeros nowhere."""

    __torch_dispatch__ = None
    requires_grad = False

    def __init__(self, shape, dtype, address, device=0):
        self.shape, self.dtype, self.address, self.device_index, self.device = shape, dtype, address, device, device

    def data_ptr(self):
        return self.address

    def get_device(self):
        return self.device_index

    def is_pinned(self):
        return False

    def stride(self):
        return tuple(prod(self.shape[i + 1:]) for i in range(len(self.shape)))


class Dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


FLOAT, HALF = Dtype("float32"), Dtype("float16")


def fake_torch():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.dtype = Tensor, Dtype
    torch.compiler = types.SimpleNamespace(is_dynamo_compiling=lambda: False)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 0)
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: STREAM + index,
                                     _are_functorch_transforms_active=lambda: False,
                                     _len_torch_dispatch_stack=lambda: 0)
    torch.is_grad_enabled = lambda: True
    torch.float32, torch.float16 = FLOAT, HALF
    made = itertools.count(1)
    torch.empty = lambda shape, *, dtype, device: Tensor(tuple(shape), dtype, 0x40000000 + 0x100000 * next(made), device)
    torch.empty_strided = lambda shape, strides, *, dtype, device: torch.empty(shape, dtype=dtype, device=device)
    torch.zeros = torch.empty
    Tensor.is_contiguous = lambda self: True
    sys.modules["torch"] = torch


class State(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint64 * 3), ("block", ctypes.c_uint64 * 3)] + [
        (n, ctypes.c_uint64) for n in ("shared", "stream")] + [("cluster", ctypes.c_uint64 * 3)] + [
        (n, ctypes.c_uint64) for n in ("launches", "loads", "encodes", "allocated", "waits", "pdl", "cooperative")]


stub = ctypes.CDLL("libcuda.so.1")
state = State.in_dll(stub, "stub_state")


def expect(sizes):
    """Tell the stub how many bytes each parameter has."""
    ctypes.c_int.in_dll(stub, "stub_count").value = len(sizes)
    (ctypes.c_int * 32).in_dll(stub, "stub_sizes")[:len(sizes)] = sizes


def parameter(i, size):
    return bytes((ctypes.c_ubyte * 128 * 32).in_dll(stub, "stub_params")[i])[:size]


def fail(name, code):
    (ctypes.c_char * 64).in_dll(stub, "stub_fail_api").value = name.encode()
    ctypes.c_int.in_dll(stub, "stub_fail_code").value = code


def setting(name, value):
    ctypes.c_int.in_dll(stub, name).value = value


def raises(kind, hint, call):
    try:
        call()
    except kind as error:
        assert hint in str(error), error
        return error
    raise AssertionError(f"no {kind.__name__}")


def tensors(count, shape=(1024,), dtype=FLOAT):
    return [Tensor(shape, dtype, 0x10000 * (i + 1)) for i in range(count)]
