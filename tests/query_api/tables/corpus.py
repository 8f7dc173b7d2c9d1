"""Objects whose tables are compared: samples of each kind, what is near to them, and many pods.

All of it follows from `samples.jsonl` and the numbers here, so a recording holds only answers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

Tree = dict[str, Any]

SAMPLES: Final = Path(__file__).parent / "samples.jsonl"
_KEPT: Final = {"kind", "apiVersion", "creationTimestamp", "clusterIPs"}
"""Every server fills them in."""
_PODS: Final = 1_500
_CREATED: Final = "2001-01-01T00:00:00Z"
"""Long ago, so that ages are whole years."""


def samples() -> dict[str, list[Tree]]:
    """Objects by resource key."""
    by_resource: dict[str, list[Tree]] = {}
    for line in SAMPLES.read_text("utf-8").splitlines():
        sample = json.loads(line)
        by_resource.setdefault(sample["resource"], []).append(sample["object"])
    return by_resource


def variants(sample: Tree) -> Iterator[tuple[str, Tree]]:
    """Change one place of an object at a time: leave it out, empty it, or say something else.

    Yields:
        The place and the change in words, and the object, which is the same one each time.
    """
    changed = copy.deepcopy(sample)
    for *parents, last in list(_places(sample)):
        place: Any = changed
        for parent in parents:
            place = place[parent]
        name = ".".join(map(str, (*parents, last)))
        before = copy.copy(place)
        for label, value in _others(place[last]):
            place[last] = value
            yield f"{name} {label}", changed
        if last != "metadata":
            del place[last]
            yield f"{name} absent", changed
        _restore(place, before)


def _restore(place: Any, before: Any) -> None:
    place.clear()
    if isinstance(place, dict):
        cast("Tree", place).update(before)
    else:
        place.extend(before)


def _places(tree: Any) -> Iterator[tuple[str | int, ...]]:
    for key, value in _items(tree):
        if key not in _KEPT:
            yield (key,)
            yield from ((key, *path) for path in _places(value))


def _items(tree: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(tree, dict):
        return cast("Tree", tree).items()
    return enumerate(cast("list[Any]", tree)) if isinstance(tree, list) else ()


def _others(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int):
        yield "zero", 0
        yield "more", value + 1
    elif isinstance(value, str):
        yield "empty", ""
        yield "other", "other"
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        yield "reversed", items[::-1]
        yield "twice", items * 2
        yield "empty", []


class _Dice:
    """A sequence of choices that is the same everywhere."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2654435761 + 1

    def pick(self, *choices: Any) -> Any:
        """Choose one."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return choices[(self._state >> 33) % len(choices)]

    def odds(self, one_in: int) -> bool:
        """Whether something happens that happens once in so many times."""
        return self.pick(*range(one_in)) == 0


def pods() -> list[Tree]:
    """Pods in every state that their containers, conditions and deletion can make together."""
    return [_pod(_Dice(number), number) for number in range(_PODS)]


def _pod(dice: _Dice, number: int) -> Tree:
    metadata: Tree = {
        "name": f"pod-{number}",
        "namespace": "default",
        "creationTimestamp": _CREATED,
    }
    if dice.odds(6):
        metadata |= {"deletionTimestamp": _CREATED, "deletionGracePeriodSeconds": 30}
    init = [_init_container(dice, f"init-{i}") for i in range(dice.pick(0, 0, 0, 1, 2, 3))]
    main = [{"name": f"main-{i}", "image": "registry/app:1"} for i in range(dice.pick(1, 1, 2, 3))]
    spec: Tree = {"containers": main, "initContainers": init, "nodeName": dice.pick("node-1", "")}
    gates = [{"conditionType": f"gate-{i}"} for i in range(dice.pick(0, 0, 0, 1, 2))]
    conditions = [
        {"type": kind, "status": dice.pick("True", "True", "False", "Unknown")}
        for kind in ("Initialized", "Ready", *(gate["conditionType"] for gate in gates))
        if not dice.odds(5)
    ]
    if dice.odds(8):
        reason = dice.pick("SchedulingGated", "Unschedulable")
        conditions.append({"type": "PodScheduled", "status": "False", "reason": reason})
    status: Tree = {
        "phase": dice.pick("Running", "Running", "Running", "Pending", "Succeeded", "Failed", ""),
        "conditions": conditions,
        "podIPs": [{"ip": f"10.0.0.{i}"} for i in range(dice.pick(0, 1, 2))],
        "initContainerStatuses": [_state(dice, each["name"]) for each in init if not dice.odds(9)],
        "containerStatuses": [_state(dice, each["name"]) for each in main if not dice.odds(9)],
    }
    if dice.odds(6):
        status["reason"] = dice.pick(
            "NodeLost", "Evicted", "Completed", "Shutdown", "UnexpectedAdmissionError"
        )
    if dice.odds(7):
        status["nominatedNodeName"] = "node-2"
    if gates:
        spec["readinessGates"] = gates
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


def _init_container(dice: _Dice, name: str) -> Tree:
    policy = {"restartPolicy": "Always"} if dice.odds(2) else {}
    return {"name": name, "image": "registry/init:1", **policy}


def _state(dice: _Dice, name: str) -> Tree:
    ended = {
        "exitCode": dice.pick(0, 0, 0, 1, 137),
        **dice.pick({}, {"reason": "Completed"}, {"reason": "Error"}, {"reason": "OOMKilled"}),
        **dice.pick({}, {}, {"signal": 9}),
    }
    waiting = dice.pick(
        {},
        {"reason": "PodInitializing"},
        {"reason": "CrashLoopBackOff"},
        {"reason": "ImagePullBackOff"},
    )
    state = dice.pick(
        {"running": {}},
        {"running": {"startedAt": _CREATED}},
        {"terminated": ended},
        {"waiting": waiting},
        {},
    )
    fields: Tree = {
        "name": name,
        "image": "registry/app:1",
        "imageID": "",
        "ready": dice.pick(True, False),
        "restartCount": dice.pick(0, 0, 1, 7),
        "state": state,
    }
    if not dice.odds(3):
        fields["started"] = dice.pick(True, False)
    if dice.odds(3):
        finished = dice.pick(
            {"finishedAt": "2002-02-02T00:00:00Z"}, {"finishedAt": "2009-02-02T00:00:00Z"}, {}
        )
        fields["lastState"] = {"terminated": {"exitCode": 1, **finished}}
    return fields
