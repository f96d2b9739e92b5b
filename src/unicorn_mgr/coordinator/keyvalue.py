"""Stores for scripts that make their own process groups: what torch's TCPStore would hold.

One store per start of a gang, so that a restarted one never reads addresses of the one
before (pytorch issue 135712).  Agents speak TCPStore's protocol to their workers and pass
the calls on to here, over the stream they have anyway: no port is lost with a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from unicorn_mgr.messages import StoreAnswer, StoreCall

_NUMBER = re.compile(rb"-?[0-9]{1,20}")
_TOO_LARGE = 1 << 63


@dataclass(slots=True)
class _Waiting:
    node: str
    call: StoreCall


@dataclass(slots=True)
class _KeyValues:
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)


@dataclass(slots=True)
class KeyValueStores:
    """All stores, by job and start."""

    stores: dict[tuple[str, int], _KeyValues] = field(default_factory=dict)

    def call(self, job: str, start: int, node: str, call: StoreCall) -> Iterator[tuple[str, StoreAnswer]]:
        """One call of a worker; yields (node, answer) for every call that is answered by it."""
        for old in [k for k in self.stores if k[0] == job and k[1] < start]:
            del self.stores[old]
        store = self.stores.setdefault((job, start), _KeyValues())
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
        values, key = store.values, call.keys[0] if call.keys else ""
        match call.operation:
            case "set":
                for k, v in zip(call.keys, call.values, strict=True):
                    values[k] = v
                return StoreAnswer(call.id, call.worker)
            case "get":
                if not all(k in values for k in call.keys):
                    return None
                return StoreAnswer(call.id, call.worker, tuple(values[k] for k in call.keys))
            case "wait":
                return StoreAnswer(call.id, call.worker) if all(k in values for k in call.keys) else None
            case "check":
                return StoreAnswer(call.id, call.worker, number=int(all(k in values for k in call.keys)))
            case "add":
                present = values.get(key, b"") or b"0"
                total = int(present) + call.amount if _NUMBER.fullmatch(present) else _TOO_LARGE
                if abs(total) >= _TOO_LARGE:
                    return StoreAnswer(call.id, call.worker, (present,))
                values[key] = str(total).encode()
                return StoreAnswer(call.id, call.worker, number=total)
            case "compare_set":
                expected, desired = call.values
                if values.get(key, b"") == expected or (key not in values and not expected):
                    values[key] = desired
                return StoreAnswer(call.id, call.worker, (values.get(key, expected),))
            case "append":
                values[key] = values.get(key, b"") + call.values[0]
                return StoreAnswer(call.id, call.worker)
            case "delete":
                return StoreAnswer(call.id, call.worker, number=int(values.pop(key, None) is not None))
            case "count":
                return StoreAnswer(call.id, call.worker, number=len(values))
            case _:
                raise AssertionError(f"no store can {call.operation}")
