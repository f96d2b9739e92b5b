"""Stores for scripts that make their own process groups: what torch's TCPStore would hold.

One store per start of a gang, or of a replica of several workers, so that one started again
never reads addresses of the one before (pytorch issue 135712).  Agents speak TCPStore's
protocol to their workers and pass the calls on to here, over the stream they have anyway: no
port is lost with a node.
What a store holds is bounded, since the coordinator's memory is everybody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from unicorn_mgr.messages import StoreAnswer, StoreCall

_NUMBER = re.compile(rb"-?[0-9]{1,20}")
_TOO_LARGE = 1 << 63
ANSWER_BYTES_MAX = 64 << 20
"""Of one value, and of all that are read at once: an answer is one message."""
STORE_BYTES_MAX = 256 << 20
"""Keys and values of one store."""
ENTRY_BYTES = 200
"""What an entry costs besides."""
REFUSED = -1
"""The `number` of an answer to what would be too large."""


@dataclass(slots=True)
class _Waiting:
    node: str
    call: StoreCall


@dataclass(slots=True)
class _KeyValues:
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)
    held_bytes: int = 0

    def put(self, entries: dict[str, bytes]) -> bool:
        """Set all of them; False, and nothing is set, if they are too large."""
        held = self.held_bytes + sum(_bytes_of(k, v) for k, v in entries.items())
        held -= sum(_bytes_of(k, self.values[k]) for k in entries if k in self.values)
        if held > STORE_BYTES_MAX or any(len(v) > ANSWER_BYTES_MAX for v in entries.values()):
            return False
        self.values.update(entries)
        self.held_bytes = held
        return True

    def remove(self, key: str) -> bool:
        """Delete a key; False if it is not there."""
        value = self.values.pop(key, None)
        if value is None:
            return False
        self.held_bytes -= _bytes_of(key, value)
        return True


def _bytes_of(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value) + ENTRY_BYTES


@dataclass(slots=True)
class KeyValueStores:
    """All stores, by job, replica (0 where all its processes are one) and start."""

    stores: dict[tuple[str, int, int], _KeyValues] = field(default_factory=dict)

    def call(
        self, job: str, start: int, node: str, call: StoreCall, replica: int = 0
    ) -> Iterator[tuple[str, StoreAnswer]]:
        """One call of a worker; yields (node, answer) for every call that is answered by it."""
        for old in [k for k in self.stores if k[:2] == (job, replica) and k[2] < start]:
            del self.stores[old]
        store = self.stores.setdefault((job, replica, start), _KeyValues())
        if call.hung_up:
            store.waiting = [w for w in store.waiting if (w.call.worker, w.call.id) != (call.worker, call.id)]
            return
        answer = self._answer(store, call)
        if answer is None:
            store.waiting.append(_Waiting(node, call))
        else:
            yield node, answer
        yield from self._wake(store)

    def forget(self, job: str) -> None:
        """The job has ended."""
        for key in [k for k in self.stores if k[0] == job]:
            del self.stores[key]

    def _wake(self, store: _KeyValues) -> Iterator[tuple[str, StoreAnswer]]:
        still = []
        for w in store.waiting:
            answer = self._answer(store, w.call)
            if answer is None:
                still.append(w)
            else:
                yield w.node, answer
        store.waiting = still

    def _answer(self, store: _KeyValues, call: StoreCall) -> StoreAnswer | None:
        """None: it has to wait.  An add to what is no number is answered with what is there."""
        refused = StoreAnswer(call.id, call.worker, number=REFUSED)
        values, key = store.values, call.keys[0] if call.keys else ""
        match call.operation:
            case "set":
                put = store.put(dict(zip(call.keys, call.values, strict=True)))
                return StoreAnswer(call.id, call.worker) if put else refused
            case "get":
                if not all(k in values for k in call.keys):
                    return None
                if sum(len(values[k]) for k in call.keys) > ANSWER_BYTES_MAX:
                    return refused
                return StoreAnswer(call.id, call.worker, tuple(values[k] for k in call.keys))
            case "wait":
                return StoreAnswer(call.id, call.worker) if all(k in values for k in call.keys) else None
            case "check":
                return StoreAnswer(call.id, call.worker, number=int(all(k in values for k in call.keys)))
            case "add":
                present = values.get(key, b"") or b"0"
                total = int(present) + call.amount if _NUMBER.fullmatch(present) else _TOO_LARGE
                if abs(total) >= _TOO_LARGE or not store.put({key: str(total).encode()}):
                    return StoreAnswer(call.id, call.worker, (present,))
                return StoreAnswer(call.id, call.worker, number=total)
            case "compare_set":
                expected, desired = call.values
                if values.get(key, b"") == expected and not store.put({key: desired}):
                    return refused
                return StoreAnswer(call.id, call.worker, (values.get(key, expected),))
            case "append":
                put = store.put({key: values.get(key, b"") + call.values[0]})
                return StoreAnswer(call.id, call.worker) if put else refused
            case "delete":
                return StoreAnswer(call.id, call.worker, number=int(store.remove(key)))
            case "count":
                return StoreAnswer(call.id, call.worker, number=len(values))
            case _:
                raise AssertionError(f"no store can {call.operation}")
