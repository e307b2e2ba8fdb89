"""The op table: every declaration is complete, and nobody keeps a second list of ops."""
import ast
from pathlib import Path

import pytest

import tilejit
from tilejit.ir import OPS, OpDef
from tilejit.ir.table import EFFECTS, LAYOUTS, REGIONS, TRAITS, op
from tilejit.ir.types import int32

PACKAGE = Path(tilejit.__file__).parent


@pytest.mark.parametrize("define", OPS.values(), ids=lambda d: d.name)
def test_a_declaration_is_complete(define: OpDef):
    has = define.traits
    assert define.effects <= EFFECTS.keys() and has <= TRAITS.keys()
    assert define.layout in LAYOUTS and define.regions in REGIONS
    assert define.doc and define.evaluate or "terminator" in has, "its meaning"
    assert (define.layout == "maps") <= (define.backward is not None), "a map of layouts"
    assert (define.layout in ("maps", "follows")) >= (define.forward is not None or define.backward is not None)
    assert (define.regions != "") == ("structural" in has)
    assert ("carries" in has) <= (define.layout == "flow")
    assert (define.scratch is not None) <= bool(has & {"collective", "atomic"}), "who exchanges values"
    assert ("elementwise" in has) <= (define.layout in ("same", "access"))
    assert ("optional" in has) <= bool(define.effects), "what is pure stays only if needed anyway"
    assert ("same_memory" in has) <= (len(define.operands) > 0)


def test_every_word_is_used():
    """No effect, trait, kind of layout or of regions that no op has."""
    used = [w for d in OPS.values() for w in (*d.effects, *d.traits)]
    assert EFFECTS.keys() | TRAITS.keys() == set(used)
    assert LAYOUTS.keys() == {d.layout for d in OPS.values()}
    assert REGIONS.keys() == {d.regions for d in OPS.values()}


@pytest.mark.parametrize(("says", "problem"), [
    ({"traits": "elementwize"}, "trait elementwize"), ({"effects": "raed", "layout": "none"}, "effect raed"),
    ({}, "layout"), ({"layout": "any"}, "layout any"), ({"layout": "none", "regions": "two"}, "regions two"),
])
def test_a_wrong_declaration_is_refused(says, problem):
    with pytest.raises(ValueError, match=problem):
        op("wrong", "x", **says)(lambda o: [int32])
    assert "wrong" not in OPS


def _op_names(node: ast.AST) -> list[str]:
    """The names of ops in a tuple, list or set of nothing else."""
    names = [x.value for x in getattr(node, "elts", ()) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return names if len(names) == len(getattr(node, "elts", ())) and all(n in OPS for n in names) else []


@pytest.mark.parametrize("room", ["ir", "passes", "schedule", "ptx", "runtime"])
def test_no_second_list_of_ops(room):
    """More than three names of ops in one collection, or any kept in a constant: the table should say it."""
    found = []
    for path in (PACKAGE / room).rglob("*.py"):
        if path.parent.name == "ops":
            continue
        tree = ast.parse(path.read_text())
        kept = {id(x) for stmt in tree.body if isinstance(stmt, (ast.Assign, ast.AnnAssign)) and stmt.value
                for x in ast.walk(stmt.value)}
        found += [f"{path.name}:{node.lineno}: {', '.join(names)}" for node in ast.walk(tree)
                  if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and (names := _op_names(node))
                  and (len(names) > 3 or id(node) in kept and len(names) > 1)]
    assert found == []
