"""Attention as users call it: a function, and an operator of torch with a gradient."""
from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import tilejit
from tilejit.kernels.attention.backward import gradients
from tilejit.kernels.attention.cases import WHAT, Case, Extras
from tilejit.kernels.attention.forward import forward
from tilejit.runtime.traced import targets

_ARRAYS = ("Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? alibi, Tensor? prefix, Tensor? cu_queries, "
           "Tensor? cu_keys, Tensor? used_keys, Tensor? pages, Tensor? blocks, Tensor[] descales, Tensor[] aux, "
           "int[] numbers, float[] reals")


@tilejit.replayed
def attention(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, *,
              window: tuple[int | None, int | None] | None = None, chunk: int | None = None, prefix: Any = None,
              softcap: float | None = None, alibi: Any = None, sinks: Any = None, score_mod: Any = None,
              score_gradient: Any = None, mask_mod: Any = None, blocks: Any = None, aux: tuple[Any, ...] = (),
              dropout: float = 0.0, seed: int = 0, cu_queries: Any = None, cu_keys: Any = None,
              max_queries: int | None = None, max_keys: int | None = None, used_keys: Any = None, pages: Any = None,
              descales: tuple[Any, Any, Any] | None = None, deterministic: bool = False, exact: bool = False,
              return_lse: bool = False, out: Any = None, lse: Any = None, tiles: tuple[int, int] | None = None,
              persistent: bool | None = None) -> Any:
    """softmax(scale * q @ k^T) @ v for every batch and head, with fp32 sums; differentiable in q, k, v and sinks.

    q [batch, queries, heads, d], k [batch, keys, kv heads, d], v [batch, keys, kv heads, dv], fp16 or bf16 (fp8e4nv
    forward only; the result is bf16 then); strides are multiples of 16 bytes, the last dimension contiguous (so [batch,
    heads, sequence, d] after a transpose of the middle ones, too); d and dv up to 256, heads a multiple of kv heads
    (grouped queries). scale: 1/sqrt(d) if None. Gives out [batch, queries, heads, dv]; with return_lse also the
    logarithms of the sums of exponentials, fp32 [batch, heads, queries], -inf for queries that see nothing, whose
    result is zero.

    What a query sees; query i is at key t = i + keys - queries:
    causal: keys up to t. window (left, right): keys from t - left to t + right, None is no limit. chunk: keys of its
    own chunk, t // chunk. prefix: int32 [batch], so many first keys whatever `causal` says. mask_mod: a kernel function
    (batch, head, query, key, *aux) -> int1 of tiles of indices that broadcast; blocks: what `attention_blocks` makes of
    it, to skip blocks of which nothing is seen.

    Scores: softcap * tanh(score / softcap); alibi: fp32 [heads], slopes of a bias slope * (key - t); sinks [heads]:
    scores of one more key, whose value is zero; score_mod: a kernel function (score, batch, head, query, key, *aux) ->
    score, score_gradient: (grad, score, batch, head, query, key, *aux) -> gradient of the score. aux: arrays (pointers
    in the function). dropout: the chance that a weight is dropped, by Philox of `seed`.

    Sequences of several lengths: q [rows, heads, d], k and v [rows, kv heads, d] have them one after another;
    cu_queries and cu_keys, int32 [batch + 1], say where each starts, max_queries and max_keys how long one is at most
    (else as many as there are rows); lse is [heads, rows] then. used_keys: int32 [batch], so many keys are there.
    pages: int32 [batch, pages of a sequence]; k and v are [pages, keys of a page, kv heads, d] then, with used_keys.
    Pages of a multiple of 16 keys are copied block by block (TMA), of others keys are looked up one by one.

    descales (fp8): fp32 numbers for q [batch, heads], k and v [batch, kv heads] (those of q's heads that share keys are
    equal). deterministic: gradients of q with equal bits every time (others have them); NaN or infinity in k or v makes
    all of a head NaN then. exact: all functions to fp32's precision; else the softcap's tanh is approximated to 2^-11
    where inputs are bf16 or fp8. Without a gradient also out, lse: where results go; tiles: queries (64, 128 or, for
    three warpgroups, 192) and keys (a multiple of 16) of a block; persistent: whether a program for each multiprocessor
    takes all blocks; both instead of a choice. Raises
    LaunchError for what does not fit.
    """
    left, right = (None, None) if window is None else window
    if causal:
        right = 0 if right is None else min(right, 0)
    numbers = [-1 if x is None else x for x in (left, right, chunk)]
    for f in (score_mod, score_gradient, mask_mod):
        numbers.append(-1 if f is None else f.number)
    total = q.shape[0]
    numbers += [seed, (total if max_queries is None else max_queries) if cu_queries is not None else 0,
                _max_keys(k, cu_keys, max_keys, pages), 0 if pages is None else k.shape[1], int(deterministic),
                int(exact or str(q.dtype).rpartition(".")[2] == "float16"), *((0, 0) if blocks is None else blocks[1:])]
    reals = [q.shape[-1] ** -0.5 if scale is None else float(scale), softcap or 0.0, float(dropout)]
    arrays = (sinks, alibi, prefix, cu_queries, cu_keys, used_keys, pages, None if blocks is None else blocks[0])
    if out is None and lse is None and tiles is None and persistent is None:
        result, logs = operator(q, k, v, *arrays, tuple(descales or ()), tuple(aux), tuple(numbers), tuple(reals))
        return (result, logs) if return_lse else result
    torch = sys.modules.get("torch")
    asked = any(getattr(x, "requires_grad", False) for x in (q, k, v, sinks))
    if asked and torch is not None and torch.is_grad_enabled():
        raise tilejit.LaunchError(f"{WHAT}: out, lse, tiles and persistent cannot be given where a gradient is asked "
                                  "for: use torch.no_grad(), or leave them out")
    if return_lse and lse is None:
        lse = _logs(q, cu_queries)
    case, extras = _case(tuple(numbers), tuple(reals)), _extras(*arrays, descales, aux)
    result = forward(q, k, v, case, extras, out, lse, tiles, persistent)
    return (result, lse) if return_lse else result


def _max_keys(k: Any, cu_keys: Any, max_keys: int | None, pages: Any) -> int:
    if cu_keys is not None:
        return int(k.shape[0]) if max_keys is None else max_keys
    return 0 if pages is None else int(pages.shape[1] * k.shape[1])


def _logs(q: Any, cu_queries: Any) -> Any:
    if cu_queries is not None:
        return tilejit.empty_like(q, (q.shape[1], q.shape[0]), tilejit.language.float32)
    return tilejit.empty_like(q, (q.shape[0], q.shape[2], q.shape[1]), tilejit.language.float32)


def _result(q: Any, v: Any) -> Any:
    small = str(q.dtype).endswith("float8_e4m3fn")
    return tilejit.empty_like(q, (*q.shape[:-1], v.shape[-1]), tilejit.language.bfloat16 if small else None)


def _extras(*arrays: Any) -> Extras:
    (sinks, slopes, prefix, cu_queries, cu_keys, used, table, blocks, descales, aux) = arrays
    return Extras(sinks, slopes, prefix, cu_queries, cu_keys, used, table, blocks,
                  tuple(descales) if descales else None, tuple(aux))


@lru_cache(maxsize=1024)
def _case(numbers: tuple[int, ...], reals: tuple[float, ...]) -> Case:
    left, right, chunk = (None if x < 0 else x for x in numbers[:3])
    score, gradient, mask = (None if x < 0 else targets[x] for x in numbers[3:6])
    seed, max_queries, max_keys, page, deterministic, exact, *block = numbers[6:]
    scale, softcap, dropout = reals
    return Case(scale, left, right, chunk, softcap or None, score, gradient, mask, dropout or None, seed, max_queries,
                max_keys, page, bool(deterministic), bool(exact), (block[0], block[1]) if block[0] else None)


@tilejit.torch_op("tilejit::attention", f"({_ARRAYS}) -> (Tensor, Tensor)",
                  fake=lambda q, k, v, *rest: (_result(q, v), _logs(q, rest[3])), replay=True)
def operator(q: Any, k: Any, v: Any, sinks: Any, alibi: Any, prefix: Any, cu_queries: Any, cu_keys: Any,
             used_keys: Any, pages: Any, blocks: Any, descales: Any, aux: Any, numbers: Any,
             reals: Any) -> tuple[Any, Any]:
    lse = _logs(q, cu_queries)
    extras = _extras(sinks, alibi, prefix, cu_queries, cu_keys, used_keys, pages, blocks, descales, aux)
    return forward(q, k, v, _case(tuple(numbers), tuple(reals)), extras, lse=lse), lse


def _gradients_like(grad: Any, lse_grad: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, sinks: Any,
                    *rest: Any) -> Any:
    some = tilejit.empty_like(q, (0,)) if sinks is None else tilejit.empty_like(sinks)
    return tuple(tilejit.empty_like(x, tuple(x.shape)) for x in (q, k, v)) + (some,)


@tilejit.torch_op("tilejit::attention_gradient", "(Tensor grad, Tensor? lse_grad, Tensor out, Tensor lse, "
                  f"{_ARRAYS}) -> (Tensor, Tensor, Tensor, Tensor)", fake=_gradients_like, replay=True)
def gradient_operator(grad: Any, lse_grad: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, sinks: Any, alibi: Any,
                      prefix: Any, cu_queries: Any, cu_keys: Any, used_keys: Any, pages: Any, blocks: Any,
                      descales: Any, aux: Any, numbers: Any, reals: Any) -> tuple[Any, Any, Any, Any]:
    extras = _extras(sinks, alibi, prefix, cu_queries, cu_keys, used_keys, pages, blocks, descales, aux)
    dq, dk, dv, of_sinks = gradients(grad, q, k, v, out, lse, lse_grad, _case(tuple(numbers), tuple(reals)), extras)
    return dq, dk, dv, tilejit.empty_like(q, (0,)) if of_sinks is None else of_sinks


def _keep(ctx: Any, inputs: tuple, output: Any) -> None:
    *arrays, descales, aux, numbers, reals = inputs
    ctx.numbers, ctx.reals = tuple(numbers), tuple(reals)
    ctx.counts = len(descales), len(aux)
    ctx.save_for_backward(*output, *arrays, *descales, *aux)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Any, lse_grad: Any) -> tuple:
    out, lse, *rest = ctx.saved_tensors
    arrays, descales, aux = rest[:11], tuple(rest[11:11 + ctx.counts[0]]), tuple(rest[11 + ctx.counts[0]:])
    none = [None] * len(descales), [None] * len(aux)
    if grad is None and lse_grad is None:
        return (*[None] * 11, *none, None, None)
    grad = out.new_zeros(out.shape) if grad is None else grad.contiguous()
    dq, dk, dv, sinks = gradient_operator(grad, None if lse_grad is None else lse_grad.contiguous(), out, lse, *arrays,
                                          descales, aux, ctx.numbers, ctx.reals)
    return (dq, dk, dv, None if arrays[3] is None else sinks, *[None] * 7, *none, None, None)


operator.register_autograd(_backward, setup_context=_keep)
