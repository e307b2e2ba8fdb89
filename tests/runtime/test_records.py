"""Records behave as the dataclasses of Python do, but that only mypy refuses assignments to frozen ones."""
from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from tilejit import records


@records.dataclass(frozen=True)
class Ours:
    a: int
    b: tuple[int, ...] = (1, 2)
    hidden: list[int] = records.field(default_factory=list, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Theirs:
    a: int
    b: tuple[int, ...] = (1, 2)
    hidden: list[int] = dataclasses.field(default_factory=list, repr=False, compare=False)


@records.dataclass
class Open:
    a: int

    def __repr__(self) -> str:
        return "mine"


@records.dataclass(eq=False)
class Apart:
    a: int


def test_records_are_dataclasses():
    one, other = Ours(3), Ours(3, hidden=[5])
    assert repr(one) == repr(Theirs(3)).replace("Theirs", "Ours")
    assert one == other and hash(one) == hash(other) and one != Ours(4) and one != Theirs(3)
    assert dataclasses.asdict(one) == dataclasses.asdict(Theirs(3)) and dataclasses.replace(one, a=4).a == 4
    assert [f.name for f in dataclasses.fields(Ours)] == ["a", "b", "hidden"] and one.hidden is not Ours(3).hidden
    assert pickle.loads(pickle.dumps(other)) == one and copy.deepcopy(other).hidden == [5]
    with pytest.raises(TypeError):
        Ours()


def test_what_a_class_says_itself_stays():
    x = Open(1)
    x.a = 2
    assert repr(x) == "mine" and x == Open(2)
    with pytest.raises(TypeError):
        hash(x)
    one = Apart(1)
    assert one != Apart(1) and len({one, Apart(1)}) == 2
