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

What goes from stage 0 to stage 1 is carried for one trip; of a load that products of both stages read in its slot
there is a second one at stage 1, `again`, which is no copy but the name of that slot: of the ring's last load but so
many. Where a product in flight is carried, whose registers must not be copied, a loop is expanded in `pairs`: two trips
at a time, with two sets of registers. Loops one after another that do the same at stage 1 (blocks of keys without and
with a mask) are expanded as one: the first has the prologue, the last the epilogue. Works on tile IR before roles are
written, so every role is a slice of the rotated loop; the evaluator runs it (modulo scheduling: Rau 1994, Lam 1988).
"""
from __future__ import annotations

from dataclasses import dataclass

from tilejit.errors import VerificationError
from tilejit.ir import Block, Builder, Function, Op, Value, clone_block, clone_op, const_of, listed, replace, uses
from tilejit.ir.report import Record
from tilejit.schedule.loads import place, top_of

#: Attributes of ops that say when they run.
TIMES = ("stage", "cycle")


def is_staged(loop: Op) -> bool:
    """Whether the ops of a loop say when they run."""
    return loop.name == "for" and any("stage" in op.attrs for op in loop.regions[0].ops)


def read(op: Op) -> list[Value]:
    """The values that an op and the ops inside of it use."""
    return [*op.operands, *(v for region in op.regions for x in listed(region) for v in x.operands)]


def copy_function(fn: Function) -> Function:
    """The same function again; the report is its own."""
    new = Function(fn.name, [a.type for a in fn.body.args], [a.name for a in fn.body.args], fn.arg_attrs, fn.attrs,
                   fn.loc)
    new.attrs["report"] = list(fn.attrs.get("report", ()))
    new.body = clone_block(fn.body, {})
    return new


def steady_state(loop: Op) -> Block:
    """The body that a staged loop gets; the loop stays as it is."""
    part, block = _Rotation(loop), Block()
    carried = [v for _, v in part.early] + part.kept + part.queued         # values of the types that are carried
    part.steady(loop.operands[:3], carried, Builder(block), 2 if loop.attrs.get("pairs") else 1)
    return block.ops[0].regions[0]


def rotate(fn: Function) -> Function:
    """Expand every staged loop, in place; returns the function. Raises VerificationError for stages that no order of
    the loop's dependences allows."""
    parts: list[_Rotation] = []
    for loop in [op for op in listed(fn.body) if is_staged(op)]:
        part = _Rotation(loop)
        if parts and parts[-1].goes_on_in(part, fn):
            fn.attrs.setdefault("report", []).append(Record(
                "joined", f"loop at {place(loop)}: goes on with what the loop at {place(parts[-1].loop)} has in flight",
                place(loop)))
        else:
            _expand(parts)
            parts = []
        parts.append(part)
    _expand(parts)
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
        used = [v for op in ops if self.times[op].stage == 1 for v in read(op)]
        #: what stage 1 needs of stage 0, or of what that carries
        self.queued = [v for v in dict.fromkeys(used)
                       if self._is_inside(v) and self._stage(v) == 0 and v not in self.late]
        self.kept = [arg for arg in self.late if arg in used]
        self.check()

    def _is_inside(self, v: Value) -> bool:
        return v.op is self.body or isinstance(v.op, Op) and v.op.parent is self.body

    def _stage(self, v: Value) -> int:
        return self.times[v.op].stage if isinstance(v.op, Op) and v.op in self.times else 0

    def check(self) -> None:
        """Every dependence points forward in time: within an iteration, and through what is carried to the next one."""
        for op in self.ops:
            if self.times[op].stage not in (0, 1):
                raise VerificationError(f"stage {self.times[op].stage}: loops have stages 0 and 1", op.loc)
        for op in self.ops:
            then = self.times[op]
            for v in read(op):
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

    def _clone(self, op: Op, env: dict[Value, Value], b: Builder) -> Op:
        new = b.insert(clone_op(op, env))
        for key in TIMES:
            new.attrs.pop(key, None)
        return new

    def _run(self, stages: tuple[int, ...], envs: dict[int, dict[Value, Value]], b: Builder) -> None:
        """Ops of these stages in order, each in the environment of its iteration."""
        loaded = set()
        for op in self.ops:
            stage = self.times[op].stage
            if stage not in stages:
                continue
            new = self._clone(op, envs[stage], b)
            if "again" in op.attrs:
                new.attrs["again"] = int(op.attrs["ring"] in loaded)
            elif stage == 0 and "ring" in op.attrs:
                loaded.add(op.attrs["ring"])
            if stage == 1 and 0 in stages:
                envs[0].update((arg, envs[1][v]) for arg, v in self.late.items() if v in op.results)

    # -- loops one after another --------------------------------------------------------------------------------------
    def goes_on_in(self, other: _Rotation, fn: Function) -> bool:
        """Whether the next loop is to be `joined`, begins with what this one ends with, and does the same at stage 1:
        then the last trip's stage 1 is done under the next loop's first stage 0."""
        one, two = self.loop, other.loop
        if not two.attrs.get("joined") or one.parent is not two.parent or one.parent is None or \
                two.operands[3:] != one.results:
            return False
        users = uses(fn.body)
        if any(users.get(v) != [(two, 3 + i)] for i, v in enumerate(one.results)):
            return False
        ops = one.parent.ops
        if any(not op.define.pure for op in ops[ops.index(one) + 1:ops.index(two)]):
            return False
        same = dict(zip(self.body.args, other.body.args))
        late = [[op for op in x.ops if x.times[op].stage] for x in (self, other)]
        if len(late[0]) != len(late[1]):
            return False
        for x, y in zip(*late):
            if (x.name, len(x.operands), {**x.attrs}, [v.type for v in x.results]) != \
                    (y.name, len(y.operands), {**y.attrs}, [v.type for v in y.results]) or x.regions:
                return False
            for v, w in zip(x.operands, y.operands):
                if v.type != w.type or same.setdefault(v, w if self._is_inside(v) else v) is not w:
                    return False
            same.update(zip(x.results, y.results))
        return [same[v] for v in self.queued] == other.queued and [same[v] for v in self.kept] == other.kept and \
            {same[v] for v in self.late} == set(other.late)

    # -- expansion ----------------------------------------------------------------------------------------------------
    @property
    def down(self) -> bool:
        """Whether the loop counts down."""
        step = const_of(self.loop.operands[2])
        return step is not None and step < 0

    @property
    def early(self) -> list[tuple[Value, Value]]:
        """What is carried and made by stage 0: in the loop, and at its end."""
        return [(arg, v) for arg, v in zip(self.args, self.yields) if arg not in self.late]

    def first(self, inits: list[Value], b: Builder) -> list[Value]:
        """Stage 0 of the first iteration; what the steady state begins with."""
        env = {self.body.args[0]: self.loop.operands[0], **dict(zip(self.args, inits))}
        self._run((0,), {0: env}, b)
        return [env.get(v, v) for _, v in self.early] + [env[arg] for arg in self.kept] + [env[v] for v in self.queued]

    def trip(self, index: Value, carried: list[Value], b: Builder) -> list[Value]:
        """Stage 0 of an iteration with stage 1 of the one before; what is carried on."""
        news, kept, queue = _split(carried, len(self.early), len(self.kept))
        now: dict[Value, Value] = {self.body.args[0]: index, **{arg: v for (arg, _), v in zip(self.early, news)}}
        before: dict[Value, Value] = {**dict(zip(self.kept, kept)), **dict(zip(self.queued, queue))}
        self._run((0, 1), {0: now, 1: before}, b)
        return [*(now.get(v, v) for _, v in self.early), *(before[self.late[arg]] for arg in self.kept),
                *(now[v] for v in self.queued)]

    def steady(self, bounds: list[Value], carried: list[Value], b: Builder, trips: int = 1) -> list[Value]:
        """A loop of so many trips at a time; what it gives."""
        index = self.body.args[0]
        names = [arg.name for arg, _ in self.early] + [arg.name for arg in self.kept] + [v.name for v in self.queued]
        region = Block([index.type, *(v.type for v in carried)], [index.name, *names])
        inner = Builder(region, loc=self.loop.loc)
        at, args = region.args[0], region.args[1:]
        for trip in range(trips):
            at = inner("add", at, self.loop.operands[2]) if trip else at
            args = self.trip(at, args, inner)
        inner.op("yield", *args)
        kept_attrs = {k: v for k, v in self.loop.attrs.items() if k != "joined"}
        steady = b.op("for", *bounds, *carried, regions=[region], pipelined=True, **kept_attrs)
        for v, name in zip(steady.results, names):
            v.name = name
        return steady.results

    def in_pairs(self, carried: list[Value], b: Builder) -> list[Value]:
        """All further iterations, two at a time, and the last one or two: what is carried from one trip to the next is
        made in two places, so its registers are never copied."""
        lo, hi, step = self.loop.operands[:3]
        size = const_of(step)
        assert size is not None
        first, last, two = b("add", lo, step), b("sub", hi, step), b.const(2 * size, step.type)
        carried = self.steady([first, last, two], carried, b, trips=2)
        some = b("add", b("sub", last, first), b.const(2 * size - 1, step.type))
        pairs = b("maximum", b("idiv", some, two), b.const(0, step.type))
        at = b("add", first, b("mul", pairs, two))
        ends = []
        for one_more in (True, False):
            end = Block()
            inner = Builder(end, loc=self.loop.loc)
            rest = self.trip(at, carried, inner) if one_more else carried
            inner.op("yield", *self.last(rest, inner))
            ends.append(end)
        return b.op("if", b("cmp", at, hi, pred="lt"), regions=ends).results

    def last(self, carried: list[Value], b: Builder) -> list[Value]:
        """Stage 1 of the last iteration; what the loop gives."""
        news, kept, queue = _split(carried, len(self.early), len(self.kept))
        env: dict[Value, Value] = {**dict(zip(self.kept, kept)), **dict(zip(self.queued, queue))}
        self._run((1,), {1: env}, b)
        found = {arg: v for (arg, _), v in zip(self.early, news)}
        return [found[arg] if arg in found else env[self.late[arg]] for arg in self.args]


def _expand(parts: list[_Rotation]) -> None:
    """Put prologue, steady states and epilogue in the place of loops that go on in each other."""
    if not parts:
        return
    loops = [part.loop for part in parts]
    block = loops[-1].parent
    assert block is not None
    at = block.ops.index(loops[-1]) + 1
    b = Builder(block, at, loops[0].loc)
    runs = [None if _runs(*loop.operands[:3]) else b("cmp", *loop.operands[:2], pred="gt" if part.down else "lt")
            for loop, part in zip(loops, parts)]
    some = None if None in runs else _any([v for v in runs if v is not None], b)
    if some is None:
        results = _pipeline(parts, runs, b)
    else:
        work, skip = Block(), Block()
        inner = Builder(work, loc=loops[0].loc)
        inner.op("yield", *_pipeline(parts, runs, inner))
        Builder(skip, loc=loops[0].loc).op("yield", *loops[0].operands[3:])
        results = b.op("if", some, regions=[work, skip]).results
    for old, new in zip(loops[-1].results, results):
        new.name = new.name or old.name
    block.ops = [op for op in block.ops if op not in loops]
    replace(top_of(block.ops[0]), dict(zip(loops[-1].results, results)))


def _any(conditions: list[Value], b: Builder) -> Value:
    found = conditions[0]
    for v in conditions[1:]:
        found = b("or", found, v)
    return found


def _pipeline(parts: list[_Rotation], runs: list[Value | None], b: Builder) -> list[Value]:
    """The parts of loops of which one runs at least; `runs`: whether each does, None if it surely does."""
    inits = parts[0].loop.operands[3:]

    def first(j: int, b: Builder) -> list[Value]:
        """Stage 0 of the first iteration of the first loop that has one, from loop j on."""
        condition = runs[j]
        if condition is None or j == len(parts) - 1:
            return parts[j].first(inits, b)
        here, on = Block(), Block()
        for block, made in ((here, lambda at: parts[j].first(inits, at)), (on, lambda at: first(j + 1, at))):
            inner = Builder(block, loc=b.loc)
            inner.op("yield", *made(inner))
        return b.op("if", condition, regions=[here, on]).results

    carried = first(0, b)
    if parts[0].loop.attrs.get("pairs"):
        return parts[0].in_pairs(carried, b)
    began: list[Value] = []
    for j, part in enumerate(parts):
        lo, step = part.loop.operands[0], part.loop.operands[2]
        if None not in runs[:j]:             # stage 0 of its first iteration may be done
            after = b("add", lo, step)
            lo = b("select", _any(began, b), lo, after) if began else after
        carried = part.steady([lo, *part.loop.operands[1:3]], carried, b)
        began += [v for v in runs[j:j + 1] if v is not None]
    return parts[-1].last(carried, b)


def _split(values: list[Value], one: int, two: int) -> tuple[list[Value], list[Value], list[Value]]:
    return values[:one], values[one:one + two], values[one + two:]


def _runs(lo: Value, hi: Value, step: Value) -> bool:
    """Whether a loop is known to have an iteration."""
    known = [const_of(v) for v in (lo, hi, step)]
    return None not in known and len(range(*known)) > 0  # type: ignore[arg-type]
