"""Peers of attention: torch's backends, FlashAttention 4, Pallas Mosaic GPU, Triton's tutorial under Triton and tilejit.

Each is a function of q, k and v [batch, sequence, heads, d]; who cannot take part raises Absent and says why.
"""
from __future__ import annotations

import functools
import importlib
import re
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contender import Absent

Attention = Callable[..., Any]
#: Configurations of the tutorial's kernel that take part in its autotuning: the others never win on Hopper.
TUTORIAL = {"BLOCK_M": (128,), "BLOCK_N": (64, 128)}
PALLAS = "jax.experimental.pallas.ops.gpu.attention_mgpu"


def by_torch(backend: Any, causal: bool) -> Attention:
    """One of torch's backends; heads ahead of the sequence, by strides."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal,
                                                enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

    return run


def flash_attention_4(causal: bool) -> Attention:
    """FlashAttention 4 (`flash-attn-4`, pure Python over the CuTe DSL)."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError as error:
        raise Absent(f"flash-attn-4 is not installed ({error})") from None

    def run(q: Any, k: Any, v: Any) -> Any:
        out = flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return run


@functools.lru_cache(maxsize=4)
def tutorial(folder: str, package: str) -> Any:
    """Triton's tutorial 06 from its own file, unchanged but for what its imports call `triton`. Its tests and benchmark
    are left out."""
    path = next(iter(sorted(Path(folder).glob("06-*.py"))), None)
    if path is None:
        raise Absent(f"no tutorial 06 in {folder!r} (--tutorials: a checkout's python/tutorials)")
    text = path.read_text().split("attention = _attention.apply")[0] + "attention = _attention.apply\n"
    text = re.sub(r"^import pytest\n", "", text, flags=re.M)
    if package != "triton":
        text = re.sub(r"^import triton$", f"import {package} as triton", text, flags=re.M)
        text = re.sub(r"^(import|from) triton\.", rf"\1 {package}.", text, flags=re.M)
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise Absent(str(error)) from None
    module = types.ModuleType(f"tutorial_06_{package.replace('.', '_')}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    source = Path(tempfile.mkdtemp(prefix="tutorial-")) / f"{module.__name__}.py"     # kernels' sources are read from files
    source.write_text(text)
    exec(compile(text, str(source), "exec"), vars(module))
    tuner = module._attn_fwd
    tuner.configs = [c for c in tuner.configs if all(c.kwargs[k] in v for k, v in TUTORIAL.items()) and
                     c.num_stages == 3] or tuner.configs
    return module


def tutorial_06(folder: str, package: str, causal: bool) -> Attention:
    """The tutorial's attention; it takes [batch, heads, sequence, d] without gaps, which is made before the first
    call with an array."""
    module = tutorial(folder, package)
    kept: dict[int, tuple[Any, Any]] = {}

    def turned(x: Any) -> Any:
        if id(x) not in kept:
            kept[id(x)] = x, x.transpose(1, 2).contiguous()
        return kept[id(x)][1]

    def run(q: Any, k: Any, v: Any) -> Any:
        return module.attention(*(turned(x) for x in (q, k, v)), causal, q.shape[-1] ** -0.5, False).transpose(1, 2)

    return run


def pallas(q: Any, k: Any, v: Any, causal: bool) -> tuple[Callable[[], Any], Callable[[int], float]]:
    """Pallas Mosaic GPU's attention as JAX ships it, for these arrays: a call, and a burst (JAX runs on streams of its
    own, so CUPTI times it)."""
    from peers_pallas import cupti_burst

    try:
        module = importlib.import_module(PALLAS)
        import jax
    except Exception as error:
        raise Absent(f"{PALLAS}: {type(error).__name__}: {str(error)[:100]}") from None
    import torch

    torch.cuda.synchronize()
    half = [x.to(torch.float16).contiguous() for x in (q * q.shape[-1] ** -0.5, k, v)]      # it does not scale
    arrays = tuple(jax.dlpack.from_dlpack(x) for x in half)
    config = module.TuningConfig(block_q=64, block_kv=128 if q.shape[-1] <= 128 else 64, max_concurrent_steps=2,
                                 causal=causal)
    fn = jax.jit(lambda *x: module.attention(*x, config))
    try:
        fn(*arrays).block_until_ready()
    except Exception as error:
        raise Absent(f"{type(error).__name__}: {str(error)[:100]}") from None

    def call() -> Any:
        return torch.from_dlpack(fn(*arrays).block_until_ready())

    return call, cupti_burst(fn, arrays)
