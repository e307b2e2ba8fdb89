"""Knobs: defaults, environment, `with` blocks, and what is refused."""
import threading

import pytest

import tilejit
from tilejit.errors import LaunchError
from tilejit.runtime import knobs


def test_unset_and_empty_and_default_are_equal():
    assert knobs.from_environment({}) == knobs.Knobs() == knobs.from_environment({"TILEJIT_DUMP": ""})


@pytest.mark.parametrize("text,value", [("0", False), ("off", False), ("None", False), ("1", True), ("yes", True)])
def test_switch(text, value):
    assert knobs.from_environment({"TILEJIT_CACHE": text}).cache is value


def test_environment_is_read_at_use(monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_SIZE", "123")
    assert knobs.current().cache_size == 123
    monkeypatch.delenv("TILEJIT_CACHE_SIZE")
    assert knobs.current().cache_size == 2 << 30


@pytest.mark.parametrize("env", [{"TILEJIT_TARGET": "gpu"}, {"TILEJIT_CACHE_SIZE": "2G"}, {"TILEJIT_WARN": "all"}])
def test_bad_environment(env):
    with pytest.raises(LaunchError, match=next(iter(env))):
        knobs.from_environment(env)


def test_with_block_nests_and_ends():
    assert knobs.overrides() is None
    with tilejit.knobs(dump="a"):
        with tilejit.knobs(cache=False):
            assert (knobs.current().dump, knobs.current().cache) == ("a", False)
        assert knobs.current().cache
    assert knobs.overrides() is None


def test_with_block_is_of_its_thread():
    seen = []
    with tilejit.knobs(dump="a"):
        t = threading.Thread(target=lambda: seen.append(knobs.current().dump))
        t.start()
        t.join()
    assert seen == [""]


def test_with_block_ends_after_an_error():
    with pytest.raises(ZeroDivisionError), tilejit.knobs(dump="a"):
        raise ZeroDivisionError
    assert knobs.overrides() is None


@pytest.mark.parametrize("values,hint", [({"dumpp": "x"}, "did you mean 'dump'"), ({"cache": 1}, "takes bool"),
                                         ({"target": "tpu"}, "not one of")])
def test_bad_with_block(values, hint):
    with pytest.raises(LaunchError, match=hint), tilejit.knobs(**values):
        pass


def test_the_chip_is_cheap_to_ask_for(monkeypatch):
    """Library functions ask with every call: the other variables are not read."""
    monkeypatch.setattr(knobs, "from_environment", lambda: pytest.fail("every knob was read"))
    monkeypatch.setenv("TILEJIT_ARCH", "sm_80")
    assert tilejit.chip() == "sm_80"
