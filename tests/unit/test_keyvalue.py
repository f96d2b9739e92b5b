"""One store per start of a job: what torch's TCPStore would say, and nothing of an earlier start."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.coordinator import keyvalue
from unicorn_mgr.coordinator.keyvalue import REFUSED, KeyValueStores
from unicorn_mgr.messages import StoreAnswer, StoreCall

OPERATIONS = ("set", "get", "wait", "check", "add", "compare_set", "append", "delete", "count")


class Caller:
    """Workers of one start, each on a node of its name."""

    def __init__(self, start: int = 0, stores: KeyValueStores | None = None) -> None:
        self.stores = stores or KeyValueStores()
        self.start = start
        self.calls = 0

    def __call__(self, worker: str, operation: str, *keys: str, **more: Any) -> dict[str, StoreAnswer]:
        """Who is answered, and how."""
        self.calls += 1
        call = StoreCall(self.calls, worker, operation, keys, **more)
        return dict(self.stores.call("gpt", self.start, f"node of {worker}", call))


def test_a_worker_waits_for_a_value_that_another_sets() -> None:
    ask = Caller()
    assert ask("a", "get", "address") == {}
    answers = ask("b", "set", "address", values=(b"10.0.0.1",))
    assert answers == {
        "node of b": StoreAnswer(2, "b"),
        "node of a": StoreAnswer(1, "a", (b"10.0.0.1",)),
    }
    assert ask("a", "get", "address")["node of a"].values == (b"10.0.0.1",)


def test_whoever_waits_for_several_is_answered_when_the_last_is_there() -> None:
    ask = Caller()
    assert ask("a", "wait", "x", "y") == {}
    assert list(ask("b", "set", "x", values=(b"1",))) == ["node of b"]
    assert list(ask("b", "set", "y", values=(b"2",))) == ["node of b", "node of a"]


def test_whoever_has_hung_up_is_not_answered() -> None:
    ask = Caller()
    ask("a", "get", "x")
    assert dict(ask.stores.call("gpt", 0, "node of a", StoreCall(1, "a", hung_up=True))) == {}
    assert list(ask("b", "set", "x", values=(b"1",))) == ["node of b"]


def test_counting_comparing_appending_deleting() -> None:
    ask = Caller()
    assert ask("a", "add", "n", amount=5)["node of a"].number == 5
    assert ask("a", "add", "n", amount=-2)["node of a"].number == 3
    assert ask("a", "get", "n")["node of a"].values == (b"3",)
    assert ask("a", "compare_set", "k", values=(b"", b"first"))["node of a"].values == (b"first",)
    assert ask("a", "compare_set", "k", values=(b"other", b"second"))["node of a"].values == (b"first",)
    assert ask("a", "compare_set", "k", values=(b"first", b"second"))["node of a"].values == (b"second",)
    ask("a", "append", "k", values=(b"!",))
    assert ask("a", "get", "k")["node of a"].values == (b"second!",)
    assert ask("a", "check", "k", "n")["node of a"].number == 1
    assert ask("a", "check", "k", "absent")["node of a"].number == 0
    assert ask("a", "count")["node of a"].number == 2
    assert ask("a", "delete", "k")["node of a"].number == 1
    assert ask("a", "delete", "k")["node of a"].number == 0


def test_a_restarted_gang_never_reads_the_addresses_of_the_one_before() -> None:
    first = Caller()
    first("a", "set", "address", values=(b"old",))
    first("c", "get", "never")
    second = Caller(1, first.stores)
    assert second("a", "get", "address") == {}
    assert list(second("b", "set", "address", values=(b"new",)))
    assert list(first.stores.stores) == [("gpt", 0, 1)], "the store of the start before is gone"


def test_an_ended_job_leaves_nothing_to_the_next_of_its_name() -> None:
    ask = Caller()
    ask("a", "set", "address", values=(b"old",))
    ask.stores.forget("gpt")
    assert ask.stores.stores == {}
    assert ask("a", "get", "address") == {}


@pytest.mark.parametrize(
    ("operation", "values"), [("set", (b"x" * 500,)), ("append", (b"x" * 500,)), ("compare_set", (b"", b"x" * 500))]
)
def test_what_is_too_much_for_a_store_is_refused_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, operation: str, values: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(keyvalue, "STORE_BYTES_MAX", 1500)
    ask = Caller()
    assert ask("a", operation, "one", values=values)["node of a"].number == 0
    assert ask("a", operation, "two", values=values)["node of a"].number == 0
    assert ask("a", operation, "three", values=values)["node of a"].number == REFUSED
    assert ask("a", "check", "three")["node of a"].number == 0
    assert ask("a", "delete", "one")["node of a"].number == 1
    assert ask("a", operation, "three", values=values)["node of a"].number == 0, "there is room again"


def test_many_small_counters_are_too_much_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalue, "STORE_BYTES_MAX", 10 * keyvalue.ENTRY_BYTES)
    ask = Caller()
    answers = [ask("a", "add", str(i), amount=1)["node of a"] for i in range(10)]
    assert answers[8] == StoreAnswer(9, "a", number=1)
    assert answers[9].values == (b"0",), "the answer that ends the line"


def test_no_answer_is_larger_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalue, "ANSWER_BYTES_MAX", 100)
    ask = Caller()
    for key in "xy":
        assert ask("a", "set", key, values=(b"v" * 60,))["node of a"].number == 0
    assert ask("a", "get", "x")["node of a"].values == (b"v" * 60,)
    assert ask("a", "get", "x", "y")["node of a"].number == REFUSED
    assert ask("a", "append", "x", values=(b"v" * 60,))["node of a"].number == REFUSED


def test_an_operation_that_no_store_has_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="no store can sing"):
        Caller()("a", "sing")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(OPERATIONS), st.sampled_from("xyz"))))
def test_every_call_is_answered_once_or_still_waits(calls: list[tuple[str, str, str]]) -> None:
    ask, answered = Caller(), 0
    for worker, operation, key in calls:
        values = (b"", b"7") if operation == "compare_set" else (b"7",)
        call = StoreCall(ask.calls, worker, operation, (key,), values, 1)
        ask.calls += 1
        answered += len(list(ask.stores.call("gpt", 0, worker, call)))
    waiting = sum(len(store.waiting) for store in ask.stores.stores.values())
    assert answered + waiting == len(calls)
    for store in ask.stores.stores.values():
        assert store.held_bytes == sum(len(k) + len(v) + keyvalue.ENTRY_BYTES for k, v in store.values.items())
