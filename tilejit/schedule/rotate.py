"""Software pipelining: expands loops whose ops say at which `stage` they run, and in which `cycle`."""
from __future__ import annotations

from functools import partial, reduce

from tilejit.ir import Block, Builder, Function, Op, Value, beside, clone_block, clone_op, const_of, listed, replace
from tilejit.schedule.loads import top_of
from tilejit.schedule.stages import TIMES, Staged, is_staged


def copy_function(fn: Function) -> Function:
    new = Function(fn.name, [a.type for a in fn.body.args], [a.name for a in fn.body.args], fn.arg_attrs, fn.attrs,
                   fn.loc)
    new.attrs["report"] = list(fn.attrs.get("report", ()))
    new.body = clone_block(fn.body, {})
    return new


def steady_state(loop: Op) -> Block:
    """The body that a staged loop gets; the loop stays as it is."""
    part, block = Staged(loop), Block()
    carried = [*part.early, *part.kept, *part.queued]  # values of the types that are carried
    _steady(part, loop.operands[:3], carried, Builder(block), 2 if loop.attrs.get("pairs") else 1)
    return block.ops[0].regions[0]


def rotate(fn: Function) -> Function:
    """Expand every staged loop, in place. Raises VerificationError for stages that dependences forbid."""
    parts: list[Staged] = []
    for loop in [op for op in listed(fn.body) if is_staged(op)]:
        part = Staged(loop)
        if parts and parts[-1].goes_on_in(part, fn):
            fn.say("joined", f"loop at {loop.place}: goes on with what the loop at {parts[-1].loop.place} has in "
                   "flight", loop.place)
        else:
            _expand(parts)
            parts = []
        parts.append(part)
    _expand(parts)
    return fn


def _run(part: Staged, stages: tuple[int, ...], envs: dict[int, dict[Value, Value]], b: Builder) -> None:
    """Ops of these stages in order, each in the environment of its iteration."""
    loaded = set()
    for op in part.ops:
        stage = part.times[op].stage
        if stage not in stages:
            continue
        new = b.insert(clone_op(op, envs[stage]))
        for key in TIMES:
            new.attrs.pop(key, None)
        if "again" in op.attrs:
            new.attrs["again"] = int(op.attrs["ring"] in loaded)
        elif stage == 0 and "ring" in op.attrs:
            loaded.add(op.attrs["ring"])
        if stage == 1 and 0 in stages:
            envs[0].update((arg, envs[1][v]) for arg, v in part.late.items() if v in op.results)


def _first(part: Staged, inits: list[Value], b: Builder) -> list[Value]:
    """Stage 0 of the first iteration; what the steady state begins with."""
    env = {part.body.args[0]: part.loop.operands[0], **dict(zip(part.args, inits))}
    _run(part, (0,), {0: env}, b)
    return [env.get(v, v) for v in part.early.values()] + [env[v] for v in (*part.kept, *part.queued)]


def _carried(part: Staged, values: list[Value]) -> tuple[dict[Value, Value], dict[Value, Value]]:
    """What is carried from trip to trip, for stage 0 and for stage 1."""
    return dict(zip(part.early, values)), dict(zip((*part.kept, *part.queued), values[len(part.early):]))


def _trip(part: Staged, index: Value, carried: list[Value], b: Builder) -> list[Value]:
    """Stage 0 of an iteration with stage 1 of the one before; what is carried on."""
    now, before = _carried(part, carried)
    now[part.body.args[0]] = index
    _run(part, (0, 1), {0: now, 1: before}, b)
    return [*(now.get(v, v) for v in part.early.values()), *(before[part.late[arg]] for arg in part.kept),
            *(now[v] for v in part.queued)]


def _steady(part: Staged, bounds: list[Value], carried: list[Value], b: Builder, trips: int = 1) -> list[Value]:
    index = part.body.args[0]
    names = [v.name for v in (*part.early, *part.kept, *part.queued)]
    region = Block([index.type, *(v.type for v in carried)], [index.name, *names])
    inner = Builder(region, loc=part.loop.loc)
    at, args = region.args[0], region.args[1:]
    for trip in range(trips):
        at = inner("add", at, part.loop.operands[2]) if trip else at
        args = _trip(part, at, args, inner)
    inner.op("yield", *args)
    kept_attrs = {k: v for k, v in part.loop.attrs.items() if k != "joined"}
    steady = b.op("for", *bounds, *carried, regions=[region], pipelined=True, **kept_attrs)
    for v, name in zip(steady.results, names):
        v.name = name
    return steady.results


def _in_pairs(part: Staged, carried: list[Value], b: Builder) -> list[Value]:
    lo, hi, step = part.loop.operands[:3]
    size = const_of(step)
    assert size is not None
    first, last, two = b("add", lo, step), b("sub", hi, step), b.const(2 * size, step.type)
    carried = _steady(part, [first, last, two], carried, b, trips=2)
    some = b("add", b("sub", last, first), b.const(2 * size - 1, step.type))
    pairs = b("maximum", b("idiv", some, two), b.const(0, step.type))
    at = b("add", first, b("mul", pairs, two))
    return b.branch(b("cmp", at, hi, pred="lt"), lambda to: _last(part, _trip(part, at, carried, to), to),
                    lambda to: _last(part, carried, to))


def _last(part: Staged, carried: list[Value], b: Builder) -> list[Value]:
    """Stage 1 of the last iteration; what the loop gives."""
    found, env = _carried(part, carried)
    _run(part, (1,), {1: env}, b)
    return [found[arg] if arg in found else env[part.late[arg]] for arg in part.args]


def _expand(parts: list[Staged]) -> None:
    if not parts:
        return
    loops = [part.loop for part in parts]
    block, b = loops[-1].block, beside(loops[-1], behind=True)
    b.loc = loops[0].loc
    runs = [_runs(loop, b) for loop in loops]
    some = [v for v in runs if v is not None]
    if len(some) < len(runs):
        results = _pipeline(parts, runs, b)
    else:
        results = b.branch(reduce(partial(b, "or"), some), lambda to: _pipeline(parts, runs, to),
                           lambda to: loops[0].operands[3:])
    for old, new in zip(loops[-1].results, results):
        new.name = new.name or old.name
    block.ops = [op for op in block.ops if op not in loops]
    replace(top_of(block.ops[0]), dict(zip(loops[-1].results, results)))


def _pipeline(parts: list[Staged], runs: list[Value | None], b: Builder) -> list[Value]:
    """The parts of loops of which one runs at least; `runs`: whether each does, None if it surely does."""
    inits = parts[0].loop.operands[3:]

    def first(j: int, b: Builder) -> list[Value]:
        """Stage 0 of the first iteration of the first loop that has one, from loop j on."""
        condition = runs[j]
        if condition is None or j == len(parts) - 1:
            return _first(parts[j], inits, b)
        return b.branch(condition, lambda to: _first(parts[j], inits, to), lambda to: first(j + 1, to))

    carried = first(0, b)
    if parts[0].loop.attrs.get("pairs"):
        return _in_pairs(parts[0], carried, b)
    began: list[Value] = []
    for j, part in enumerate(parts):
        lo, step = part.loop.operands[0], part.loop.operands[2]
        if None not in runs[:j]:  # stage 0 of its first iteration may be done
            after = b("add", lo, step)
            lo = b("select", reduce(partial(b, "or"), began), lo, after) if began else after
        carried = _steady(part, [lo, *part.loop.operands[1:3]], carried, b)
        began += [v for v in runs[j:j + 1] if v is not None]
    return _last(parts[-1], carried, b)


def _runs(loop: Op, b: Builder) -> Value | None:
    """Whether a loop has an iteration; None if it is known to have one."""
    known = [const_of(v) for v in loop.operands[:3]]
    if None not in known and len(range(*known)) > 0:
        return None
    return b("cmp", *loop.operands[:2], pred="gt" if (known[2] or 0) < 0 else "lt")
