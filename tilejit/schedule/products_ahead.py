"""Products of the next iteration, issued before this one's result is used: a loop whose products start from zero.

    for i: P = A[i] @ B[i]; s = s + P * scale[i]

would wait for every product with nothing in flight. Written with two sets of registers for P, which are never copied:

    P0 = A[0] @ B[0]                                            in flight
    for i by 2, while i + 2 < n:
        P1 = A[i+1] @ B[i+1];  wait for all but one;  s = s + P0 * scale[i]
        P0 = A[i+2] @ B[i+2];  wait for all but one;  s = s + P1 * scale[i+1]
    the last one or two

Slots are released behind the waits. Whether the operands of the product after the next are there is looked at behind
the issue of the next: the answer (tens of cycles) comes while sums are made. The producer's role is not concerned: the
tickets are the same.
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, Value, edges, walk
from tilejit.ir.report import Record
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.schedule.plan import Plan, Ring, kind_of, place, reads_slot
from tilejit.schedule.products import Products

#: Registers of a thread beside what a loop carries and reads and both sets: addresses, tickets.
BESIDE = 28


def find_products_ahead(fn: Function, plan: Plan, registers: int) -> None:
    """Choose the loops whose products are issued ahead; `registers`: of a consumer's thread.

    By default where the registers suffice; `products_ahead` says otherwise (True: where it can be, with a line in the
    report where it cannot)."""
    asked = fn.attrs.get("products_ahead")
    if asked is False:
        return
    for loop in walk(fn.body):
        if loop.name != "for" or loop in plan.chains or "pipelined" in loop.attrs or \
                plan.ping_pong and loop is plan.ping_pong.loop:
            continue
        dots = [op for op in walk(loop.regions[0]) if op.name == "dot"]
        if not any(dot.parent is loop.regions[0] for dot in dots):
            continue
        problem = _problem(loop, dots, plan)
        if not problem and asked is None and _registers(loop, dots[0], fn) > registers - BESIDE:
            problem = "registers do not suffice for two sets of results"
        if not problem:
            plan.products_ahead[loop] = dots[0]
        elif asked:
            plan.report.append(Record("no_products_ahead", f"loop at {place(loop)}: products are not issued ahead: "
                                      f"{problem}", place(loop)))


def rings_of(dot: Op, plan: Plan) -> list[Ring]:
    """The rings that a product reads."""
    loads = [reads_slot(dot, i) for i in (0, 1)]
    return [ring for ring in plan.rings if any(load in ring.loads for load in loads)]


def _problem(loop: Op, dots: list[Op], plan: Plan) -> str:
    """Why a loop's product cannot be issued an iteration ahead; empty if it can."""
    body, dot = loop.regions[0], dots[0]
    start, step = dot.operands[2].op, loop.operands[2].op
    if not plan.specialised:
        return "the kernel is not specialised"
    if len(dots) > 1 or "unit" in dot.attrs:
        return "it has more than one product" if len(dots) > 1 else "mma.sync multiplies"
    if not (isinstance(start, Op) and start.name == "const" and start.attrs["value"] == 0):
        return "the product does not start from zero"
    if not (isinstance(step, Op) and step.name == "const" and step.attrs["value"] > 0):
        return "its step is not a positive constant"
    loads = [reads_slot(dot, i) for i in (0, 1)]
    rings = rings_of(dot, plan)
    if None in loads or any(not r.views or r.local or r.loop is not loop or any(x.parent is not body for x in r.loads)
                            for r in rings):
        return "an operand is not read from a slot that a producer fills"
    if any(r.local for r in plan.rings if r.loop is loop):
        return "the threads that compute also copy"
    if any(r.slots < 2 for r in plan.rings if r.loop is loop):
        return "a ring has one slot"
    for op in body.ops[:-1]:
        if op is not dot and not kind_of(op) and (op.regions or op.define.effects - {"read"}):
            return f"{op.name} ({place(op)}) may have to wait for others"
    return ""


def _registers(loop: Op, dot: Op, fn: Function) -> int:
    """A thread's registers for what the loop carries, the tiles from outside that it reads, and two results."""
    def of(v: Value) -> int:
        t, elem = v.type, elem_of(v.type)  # type: ignore[arg-type]
        if not isinstance(t, Tile) or t.layout is None:
            return 0 if isinstance(t, Tile) else 1
        each = elem.bytes / 4 if isinstance(elem, DType) else 2
        return int(t.layout.num_registers * each)

    body = loop.regions[0]
    read = {v for op in body.ops for v in op.operands if isinstance(v.type, Tile) and not (
        v.op is body or isinstance(v.op, Op) and (v.op.parent is body or v.op.name in ("const", "splat")))}
    return sum(map(of, loop.results)) + sum(map(of, read)) + 2 * of(dot.result)


class ProductsAhead(Products):
    """The part of a role's writer that writes such loops."""

    def _for_ahead(self, op: Op, b: Builder) -> None:
        """The loop, unrolled by two, between the first product and the results of the last ones."""
        dot, body = self.plan.products_ahead[op], op.regions[0]
        rings = rings_of(dot, self.plan)
        self.issued.update([dot, *(load for ring in rings for load in ring.loads)])
        keys, sums = self._keys(op), [self.env[v] for e in edges(op) if (v := e.init)]
        lo, hi, step = (self.env[v] for v in op.operands[:3])
        before = self._state(keys)
        work, skip = Block(), Block()
        inner = Builder(work, loc=op.loc)
        zero = inner("const", value=0, type=dot.operands[2].type)
        first = self._issue_product(dot, rings, inner("pend", zero), inner)
        starts, last = self._state(keys), inner("sub", hi, step)
        carried = [*sums, *starts, lo, first, *self._tests(rings)]
        region = Block([lo.type, *(v.type for v in carried)],
                       [body.args[0].name, *(v.name for v in body.args[1:]), *("" for _ in carried[len(sums):])])
        mine, tickets, (here, *rest) = _split(region.args[1:], len(sums), len(starts))
        self._set_state(keys, tickets)
        at = Builder(region, loc=op.loc)
        one = self._carried(rest, rings)
        two = self._issue_product(dot, rings, at("pend", zero), at)
        mine = self._use(op, region.args[0], one, mine, at)
        one = self._issue_product(dot, rings, one, at, zero=True)
        second = at("add", region.args[0], step)
        mine = self._use(op, second, two, mine, at)
        at.op("yield", *mine, *self._state(keys), at("add", second, step), one, *self._tests(rings))
        loop = inner.op("for", lo, inner("sub", last, step), inner("add", step, step), *carried, regions=[region],
                        **op.attrs)
        mine, tickets, (here, *rest) = _split(loop.results, len(sums), len(starts))
        ends = []
        for pair in (True, False):
            end = Block()
            at = Builder(end, loc=op.loc)
            self._set_state(keys, tickets)
            one = self._carried(rest, rings)
            if pair:
                two = self._issue_product(dot, rings, at("pend", at("const", value=0, type=zero.type)), at)
            made = self._use(op, here, one, mine, at)
            if pair:
                made = self._use(op, at("add", here, step), two, made, at)
            self.tested.clear()
            at.op("yield", *made, *self._state(keys))
            ends.append(end)
        inner.op("yield", *inner.op("if", inner("cmp", here, last, pred="lt"), regions=ends).results)
        Builder(skip, loc=op.loc).op("yield", *sums, *before)
        results = b.op("if", b("cmp", lo, hi, pred="lt"), regions=[work, skip]).results
        self._set_state(keys, results[len(sums):])
        for old, new in zip(op.results, results):
            new.name = old.name
            self.env[old] = new

    def _tests(self, rings: list[Ring]) -> list[Value]:
        """What is known of the next tickets' slots."""
        return [self.tested.pop(ring) for ring in rings]

    def _carried(self, rest: list[Value], rings: list[Ring]) -> Value:
        """The product in flight, and what is known of the next tickets' slots, from what a loop carries last."""
        self.tested = dict(zip(rings, rest[1:]))
        return rest[0]

    def _issue_product(self, dot: Op, rings: list[Ring], acc: Value, b: Builder, **zero: bool) -> Value:
        """Issue a product with the operands of the next tickets, and look whether those after them are there."""
        for ring in rings:
            self._load(ring.loads[-1], b)
        a, bb = (self._operand(dot, i, b) for i in (0, 1))
        extra = {k: v for k, v in dot.attrs.items() if k in ("precision", "begin", "depth")}
        product = b("dot_async", a, bb, acc, **extra, **zero)
        product.name = dot.result.name
        for ring in rings:
            slot, parity = self.state[ring.channel, "use"]
            self.tested[ring] = b("mbar_test", self.shared[ring].full, self._place(ring, slot, b), parity)
        return product

    def _use(self, op: Op, iv: Value, product: Value, carried: list[Value], b: Builder) -> list[Value]:
        """What an iteration does with its product: what is carried on."""
        dot, body = self.plan.products_ahead[op], op.regions[0]
        self.env.update(zip(body.args, [iv, *carried]))

        self._wait(dot, product, b)
        self.block(body, b)
        return [self.env[v] for v in body.terminator.operands]


def _split(values: list[Value], sums: int, tickets: int) -> tuple[list[Value], list[Value], list[Value]]:
    """What is carried: the loop's own values, the tickets, the rest."""
    return values[:sums], values[sums:sums + tickets], values[sums + tickets:]
