"""Software pipelining: expands loops whose ops say at which `stage` they run, and in which `cycle`.

Iteration i's op runs in trip i + stage. With stages 0 and 1 the first trip is a prologue (stage 0 of the first
iteration), the last one an epilogue (stage 1 of the last), and in between every trip does stage 0 of one iteration and
stage 1 of the one before, by `cycle`:

    %r = for %i in lo .. hi, %c:               %s = f(lo, %c)
      %s = f(%i, %c)  {stage=0}                %r = for %i in lo + 1 .. hi, %c, %s0 = %s:
      %d = g(%s, %c)  {stage=1}         ->       %s1 = f(%i, ..)
      yield %d                                   %d = g(%s0, ..)
                                                 yield %d, %s1
                                               %d = g(%s0, ..)

What goes from stage 0 to stage 1 is carried for one trip. Works on tile IR before roles are written, so every role is
a slice of the rotated loop, and the evaluator runs it (modulo scheduling: Rau 1994, Lam 1988).
"""
from __future__ import annotations

from dataclasses import dataclass

from tilejit.errors import VerificationError
from tilejit.ir import Block, Builder, Function, Op, Value, clone_block, clone_op, replace, walk

#: Attributes of ops that say when they run.
TIMES = ("stage", "cycle")


def is_staged(loop: Op) -> bool:
    """Whether the ops of a loop say when they run."""
    return loop.name == "for" and any("stage" in op.attrs for op in loop.regions[0].ops)


def copy_function(fn: Function) -> Function:
    """The same function again; the report is its own."""
    new = Function(fn.name, [a.type for a in fn.body.args], [a.name for a in fn.body.args], fn.arg_attrs, fn.attrs,
                   fn.loc)
    new.body = clone_block(fn.body, {})
    return new


def rotate(fn: Function) -> Function:
    """Expand every staged loop, in place; returns the function. Raises VerificationError for stages that no order of
    the loop's dependences allows."""
    for loop in [op for op in walk(fn.body) if is_staged(op)]:
        _Rotation(loop).expand()
    return fn


@dataclass(frozen=True)
class Time:
    """When an op runs: the trip, counted from its iteration's, and the place within the trip."""

    stage: int
    cycle: tuple[int, int]


class _Rotation:
    def __init__(self, loop: Op):
        self.loop, self.body = loop, loop.regions[0]
        ops = self.body.ops[:-1]
        self.times = {op: Time(op.attrs.get("stage", 0), (op.attrs.get("cycle", 0), i)) for i, op in enumerate(ops)}
        self.ops = sorted(ops, key=lambda op: self.times[op].cycle)
        self.args, self.yields = self.body.args[1:], self.body.terminator.operands
        #: what is carried and made by stage 1
        self.late = {arg: v for arg, v in zip(self.args, self.yields) if self._stage(v) == 1}
        used = [v for op in ops if self.times[op].stage == 1 for v in self._read(op)]
        #: what stage 1 needs of stage 0, or of what that carries
        self.queued = [v for v in dict.fromkeys(used)
                       if self._is_inside(v) and self._stage(v) == 0 and v not in self.late]
        self.kept = [arg for arg in self.late if arg in used]
        self.check()

    def _is_inside(self, v: Value) -> bool:
        return v.op is self.body or isinstance(v.op, Op) and v.op.parent is self.body

    def _stage(self, v: Value) -> int:
        return self.times[v.op].stage if isinstance(v.op, Op) and v.op in self.times else 0

    @staticmethod
    def _read(op: Op) -> list[Value]:
        """The values that an op and the ops inside of it use."""
        return [*op.operands, *(v for region in op.regions for x in walk(region) for v in x.operands)]

    def check(self) -> None:
        """Every dependence points forward in time: within an iteration, and through what is carried to the next one."""
        for op in self.ops:
            if self.times[op].stage not in (0, 1):
                raise VerificationError(f"stage {self.times[op].stage}: loops have stages 0 and 1", op.loc)
        for op in self.ops:
            then = self.times[op]
            for v in self._read(op):
                distance = int(v in self.args)
                v = dict(zip(self.args, self.yields)).get(v, v)
                if not isinstance(v.op, Op) or v.op not in self.times:
                    continue
                first = self.times[v.op]
                if (then.stage + distance, then.cycle) <= (first.stage, first.cycle):
                    raise VerificationError(
                        f"{op.name} has stage {then.stage} and cycle {then.cycle[0]}: too early for what {v.op.name} "
                        f"gives {'the iteration before' if distance else 'it'} (stage {first.stage}, cycle "
                        f"{first.cycle[0]})",
                        op.loc)
        for arg, v in zip(self.args, self.yields):
            if v.op is self.body and v is not arg:
                raise VerificationError(f"the loop hands on {v.name or 'a value'} in another place: it cannot be "
                                        "rotated", self.loop.loc)

    def _clone(self, op: Op, env: dict[Value, Value], b: Builder) -> None:
        new = b.insert(clone_op(op, env))
        for key in TIMES:
            new.attrs.pop(key, None)

    def _run(self, stages: tuple[int, ...], envs: dict[int, dict[Value, Value]], b: Builder) -> None:
        """Ops of these stages in order, each in the environment of its iteration."""
        for op in self.ops:
            stage = self.times[op].stage
            if stage not in stages:
                continue
            self._clone(op, envs[stage], b)
            if stage == 1 and 0 in stages:
                envs[0].update((arg, envs[1][v]) for arg, v in self.late.items() if v in op.results)

    def expand(self) -> None:
        """Put prologue, steady state and epilogue in the loop's place."""
        loop, block = self.loop, self.loop.parent
        assert block is not None
        lo, hi, step = loop.operands[:3]
        at = block.ops.index(loop)
        block.ops.remove(loop)
        b = Builder(block, at, loop.loc)
        if _runs(lo, hi, step):
            results = self._pipeline(b)
        else:
            work, skip = Block(), Block()
            inner = Builder(work, loc=loop.loc)
            inner.op("yield", *self._pipeline(inner))
            Builder(skip, loc=loop.loc).op("yield", *loop.operands[3:])
            down = _constant(step) is not None and _constant(step) < 0  # type: ignore[operator]
            results = b.op("if", b("cmp", lo, hi, pred="gt" if down else "lt"), regions=[work, skip]).results
        for old, new in zip(loop.results, results):
            new.name = new.name or old.name
        top = block
        while top.parent is not None and top.parent.parent is not None:
            top = top.parent.parent
        replace(top, dict(zip(loop.results, results)))

    def _pipeline(self, b: Builder) -> list[Value]:
        """The three parts; what the loop gives."""
        loop, inits = self.loop, self.loop.operands[3:]
        lo, hi, step = loop.operands[:3]
        index = self.body.args[0]
        first: dict[Value, Value] = {index: lo, **dict(zip(self.args, inits))}
        self._run((0,), {0: first}, b)
        early = [(arg, v) for arg, v in zip(self.args, self.yields) if arg not in self.late]
        carried = [first.get(v, v) for _, v in early] + [first[arg] for arg in self.kept] + \
            [first[v] for v in self.queued]
        names = [arg.name for arg, _ in early] + [arg.name for arg in self.kept] + [v.name for v in self.queued]
        region = Block([index.type, *(v.type for v in carried)], [index.name, *names])
        news, kept, queue = _split(region.args[1:], len(early), len(self.kept))
        now: dict[Value, Value] = {index: region.args[0], **{arg: v for (arg, _), v in zip(early, news)}}
        before: dict[Value, Value] = {**dict(zip(self.kept, kept)), **dict(zip(self.queued, queue))}
        inner = Builder(region, loc=loop.loc)
        self._run((0, 1), {0: now, 1: before}, inner)
        inner.op("yield", *(now.get(v, v) for _, v in early), *(before[self.late[arg]] for arg in self.kept),
                 *(now[v] for v in self.queued))
        second = b("add", lo, step)
        steady = b.op("for", second, hi, step, *carried, regions=[region], pipelined=True, **loop.attrs)
        news, kept, queue = _split(steady.results, len(early), len(self.kept))
        for v, name in zip(steady.results, names):
            v.name = name
        last: dict[Value, Value] = {**dict(zip(self.kept, kept)), **dict(zip(self.queued, queue))}
        self._run((1,), {1: last}, b)
        found = {arg: v for (arg, _), v in zip(early, news)}
        return [found[arg] if arg in found else last[self.late[arg]] for arg in self.args]


def _split(values: list[Value], one: int, two: int) -> tuple[list[Value], list[Value], list[Value]]:
    return values[:one], values[one:one + two], values[one + two:]


def _constant(v: Value) -> int | None:
    return v.op.attrs["value"] if isinstance(v.op, Op) and v.op.name == "const" else None


def _runs(lo: Value, hi: Value, step: Value) -> bool:
    """Whether a loop is known to have an iteration."""
    known = [_constant(v) for v in (lo, hi, step)]
    return None not in known and len(range(*known)) > 0  # type: ignore[arg-type]
