"""When the ops of a loop run: in trip i + `stage` of iteration i, there by `cycle`; and whether an order allows that.
"""
from __future__ import annotations

from typing import NamedTuple

from tilejit.errors import VerificationError
from tilejit.ir import Block, Function, Op, Value, clone_op, read, replace, uses
from tilejit.schedule.loads import in_place, kind_of, top_of

#: Attributes of ops that say when they run.
TIMES = ("stage", "cycle")


def is_staged(loop: Op) -> bool:
    return loop.name == "for" and any("stage" in op.attrs for op in loop.regions[0].ops)


def places_problem(body: Block) -> str:
    """Why what a loop carries keeps it from being rotated; empty if nothing does."""
    swaps = any(v.op is body and v is not arg for arg, v in zip(body.args[1:], body.terminator.operands))
    return "values change places from iteration to iteration" if swaps else ""


class Time(NamedTuple):
    """When an op runs: the trip, counted from its iteration's, and the place within the trip."""

    stage: int
    cycle: tuple[int, int]


class Staged:
    """A loop whose ops say when they run. Raises VerificationError for what no order of its dependences allows."""

    def __init__(self, loop: Op):
        self.loop, self.body = loop, loop.regions[0]
        ops = self.body.ops[:-1]
        self.times = {op: Time(op.attrs.get("stage", 0), (op.attrs.get("cycle", 0), i)) for i, op in enumerate(ops)}
        self.ops = sorted(ops, key=lambda op: self.times[op].cycle)
        self.args, self.yields = self.body.args[1:], self.body.terminator.operands
        #: what is carried and made by stage 1, and by stage 0: in the loop, and at its end
        self.late = {arg: v for arg, v in zip(self.args, self.yields) if self.stage(v) == 1}
        self.early = {arg: v for arg, v in zip(self.args, self.yields) if arg not in self.late}
        used = [v for op in ops if self.times[op].stage == 1 for v in read(op)]
        #: what stage 1 needs of stage 0, or of what that carries
        self.queued = [v for v in dict.fromkeys(used)
                       if v.home is self.body and self.stage(v) == 0 and v not in self.late]
        self.kept = [arg for arg in self.late if arg in used]
        self._check()

    def stage(self, v: Value) -> int:
        return self.times[v.op].stage if isinstance(v.op, Op) and v.op in self.times else 0

    def _check(self) -> None:
        """Every dependence points forward in time: within an iteration, and through what is carried to the next one."""
        for op in self.ops:
            if self.times[op].stage not in (0, 1):
                raise VerificationError(f"stage {self.times[op].stage}: loops have stages 0 and 1", op.loc)
        ends = dict(zip(self.args, self.yields))
        for op in self.ops:
            then = self.times[op]
            for v in read(op):
                distance, v = int(v in ends), ends.get(v, v)
                if not isinstance(v.op, Op) or v.op not in self.times:
                    continue
                first = self.times[v.op]
                if (then.stage + distance, then.cycle) <= (first.stage, first.cycle):
                    raise VerificationError(
                        f"{op.name} has stage {then.stage} and cycle {then.cycle[0]}: too early for what {v.op.name} "
                        f"gives {'the iteration before' if distance else 'it'} (stage {first.stage}, cycle "
                        f"{first.cycle[0]})",
                        op.loc)
        if problem := places_problem(self.body):
            raise VerificationError(f"{problem}: the loop cannot be rotated", self.loop.loc)

    def goes_on_in(self, other: Staged, fn: Function) -> bool:
        """Whether the next loop is to be `joined`, begins with what this one ends with, and does the same at stage 1,
        which is done under its first stage 0 then."""
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
        forms = [[(op.name, op.attrs, [[v.type for v in values] for values in (op.operands, op.results)]) for op in ops]
                 for ops in late]
        if forms[0] != forms[1] or any(op.regions for op in late[0]):
            return False
        for x, y in zip(*late):
            for v, w in zip(x.operands, y.operands):
                if same.setdefault(v, w if v.home is self.body else v) is not w:
                    return False
            same.update(zip(x.results, y.results))
        return [same[v] for v in self.queued] == other.queued and [same[v] for v in self.kept] == other.kept and \
            {same[v] for v in self.late} == set(other.late)


def mark(loop: Op, times: dict[Op, tuple[int, int]], rings: dict[str, tuple]) -> None:
    """Write times and rings down. Loads of loops next to each other that are alike share a ring."""
    body = loop.regions[0]
    for op, time in times.items():
        op.attrs.update(zip(TIMES, time))
    for op in [x for x in times if kind_of(x)]:
        kind = (loop.parent, loop.attrs.get("num_stages"), op.result.type, op.operands[0], times[op][0])
        base = name = op.result.name or "load"
        number = 1
        while rings.setdefault(name, kind) != kind or any(x.attrs.get("ring") == name for x in body.ops):
            number += 1
            name = f"{base}.{number}"
        op.attrs["ring"] = name
        _read_again(loop, op)


def _read_again(loop: Op, load: Op) -> None:
    """Where products at stage 1 read the slot of a load at stage 0: the name of that slot a trip later (`again`)."""
    body, table = loop.regions[0], uses(top_of(loop))
    late = [(u, i) for u, i in table.get(load.result, ()) if u.attrs.get("stage", 0) > load.attrs["stage"]]
    if not late or not in_place(load.result, table):
        return
    name = clone_op(load, {})
    name.attrs.update(stage=1, cycle=min(u.attrs["cycle"] for u, _ in late), again=0)
    name.result.name, name.parent = load.result.name, body
    body.ops.insert(body.ops.index(load) + 1, name)
    for user, i in late:
        user.operands[i] = name.result


def unmark(loop: Op) -> None:
    body = loop.regions[0]
    for op in [x for x in body.ops if "again" in x.attrs]:
        load = next(x for x in body.ops if x.attrs.get("ring") == op.attrs["ring"])
        replace(body, {op.result: load.result})
        body.ops.remove(op)
    for op in body.ops:
        for key in (*TIMES, "ring"):
            op.attrs.pop(key, None)
