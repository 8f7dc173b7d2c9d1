"""Random applies and updates by three managers: what server-side apply promises holds each time.

FLEETBUS_TEST_SEEDS says how many histories; a failure names its seed.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from emulator.support.apply_model import (
    ABSENT,
    Path,
    Subject,
    at,
    leaves,
    owned,
    random_deployment,
    random_metadata,
    random_widget,
)
from emulator.support.kube_calls import (
    CRDS,
    DEPLOYMENTS,
    WIDGETS,
    Calls,
    Reply,
    deployment,
    widget,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster

JsonObject = dict[str, Any]
SEEDS = int(os.environ.get("FLEETBUS_TEST_SEEDS", "160"))
CHUNK = 40
MANAGERS = ("ann", "bob", "cyd")
SUBJECTS = (Subject(f"{WIDGETS}/a", widget("a")), Subject(f"{DEPLOYMENTS}/a", deployment("a")))
MAKE = {"Widget": random_widget, "Deployment": random_deployment}
# What the server puts back when nobody wants it any more.
DEFAULTED = {"replicas", "protocol", "image", "size"}


class _History:
    """One object, three managers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.calls = Calls(Cluster("alpha", seed=seed))
        self.calls.post(CRDS, widget_definition())
        self.subject = self.random.choice(SUBJECTS)
        self.applied: dict[str, JsonObject] = {}
        self.conflicts = 0
        if self.random.random() < 0.7:
            collection = self.subject.path.rpartition("/")[0]
            created = self.calls.post(collection, self.subject.base, fieldManager="creator")
            assert created.status == 201

    def live(self) -> JsonObject:
        return self.calls.get(self.subject.path).document

    def config(self) -> JsonObject:
        """A random configuration; the first one has all that is required."""
        base = self.subject.base
        spec = MAKE[base["kind"]](self.random)
        if self.calls.get(self.subject.path).status == 404:
            return base
        metadata = random_metadata(self.random, "a")
        return {**self.subject.head, "metadata": metadata, **({"spec": spec} if spec else {})}

    def turn(self) -> None:
        manager = self.random.choice(MANAGERS)
        choice = self.random.random()
        if choice < 0.7:
            self.apply(manager, self.config(), force=self.random.random() < 0.3)
        elif choice < 0.8 and manager in self.applied:
            self.apply(manager, self.shrunk(self.applied[manager]), force=False)
        elif self.calls.get(self.subject.path).status == 200:
            self.update(manager)

    def shrunk(self, config: JsonObject) -> JsonObject:
        """The configuration without one of the fields of its spec."""
        spec = dict(config.get("spec") or {})
        if spec:
            del spec[self.random.choice(list(spec))]
        remaining = {name: value for name, value in config.items() if name != "spec"}
        return {**remaining, **({"spec": spec} if spec else {})}

    # applies ------------------------------------------------------------------------------------

    def apply(self, manager: str, config: JsonObject, *, force: bool) -> None:
        before = self.calls.get(self.subject.path)
        options = {"force": "true"} if force else {}
        reply = self.calls.apply(self.subject.path, config, manager, **options)
        if before.status == 404:
            assert reply.status == 201, reply.document
            self.applied[manager] = config
            return
        assert reply.status in (200, 409, 422), reply.document
        contested = _contested(before.document, manager, config)
        if reply.status == 422:  # the outcome would have been no valid object
            assert self.live() == before.document
            return
        assert reply.status == (409 if contested and not force else 200), (
            contested,
            reply.document,
        )
        if reply.status == 409:
            self.conflicts += 1
            assert self.live() == before.document
            return
        self.applied[manager] = config
        _check_apply(before.document, reply.document, manager, config, force=force)
        again = self.calls.apply(self.subject.path, config, manager)
        assert again.status == 200, again.document
        assert again.document == reply.document, "applied again, it changes nothing"

    # updates ------------------------------------------------------------------------------------

    def update(self, manager: str) -> None:
        before, config = self.live(), self.config()
        if self.random.random() < 0.5:
            patch = {name: config[name] for name in ("metadata", "spec") if name in config}
            reply = self.calls.merge(self.subject.path, patch, fieldManager=manager)
        else:
            meta = {**before["metadata"], **random_metadata(self.random, "a")}
            spec = {**before["spec"], **config.get("spec", {})}
            spec["template"] = before["spec"].get("template")
            body = {**before, "metadata": meta, "spec": {k: v for k, v in spec.items() if v}}
            reply = self.calls.put(self.subject.path, body, fieldManager=manager)
        assert reply.status in (200, 422), reply.document
        if reply.status == 422:
            assert self.live() == before
            return
        _check_update(before, reply, manager)


def _others(obj: JsonObject, manager: str) -> set[Path]:
    """The fields of the other managers, and those of the manager by other means than apply."""
    mine = (manager, "Apply", "")
    sets = [paths for key, paths in owned(obj).items() if key != mine]
    return set[Path]().union(*sets)


def _contested(before: JsonObject, manager: str, config: JsonObject) -> set[Path]:
    """The leaves that another owns and that are to get another value."""
    own_leaves, others = leaves(config), _others(before, manager)
    return {
        path
        for path, value in own_leaves.items()
        if path in others and value is not ABSENT and at(before, path) != value
    }


def _check_books(obj: JsonObject) -> None:
    for key, paths in owned(obj).items():
        assert paths, f"{key} owns nothing"
        for path in paths:
            assert at(obj, path) is not ABSENT, f"{key} owns {path}, which is not there"


def _check_apply(
    before: JsonObject, after: JsonObject, manager: str, config: JsonObject, *, force: bool
) -> None:
    _check_books(after)
    config_leaves = leaves(config)
    mine = owned(after).get((manager, "Apply", ""), set())
    assert mine == set(config_leaves), "it owns what it applies, nothing else"
    for path, value in config_leaves.items():
        assert value is ABSENT or at(after, path) == value, path
    dropped = owned(before).get((manager, "Apply", ""), set()) - set(config_leaves)
    others = _others(before, manager)
    gone = {path for path in dropped - others if path[-1].startswith("k:")}
    others = {path for path in others if not _is_below(path, gone)}
    for path in others - set(config_leaves):
        if not any(
            path[: len(leaf)] == leaf or leaf[: len(path)] == path for leaf in config_leaves
        ):
            assert _is_kept(path, before, after), f"{path} is another's"
    if not force:
        for path in others:
            assert at(after, path) is not ABSENT, f"{path} is another's"
    _check_removals(after, dropped, others | set(config_leaves))


def _is_below(path: Path, items: set[Path]) -> bool:
    return any(path[: len(item)] == item for item in items)


def _check_removals(after: JsonObject, dropped: set[Path], removed: set[Path]) -> None:
    for path in dropped:
        if any(other[: len(path)] == path for other in removed):
            continue
        if any(other == path[: len(other)] for other in removed if not other[-1].startswith("k:")):
            continue  # it lies within something that is owned as a whole
        if path[-1].removeprefix("f:") not in DEFAULTED:
            assert at(after, path) is ABSENT, f"{path} is nobody's any more"


def _check_update(before: JsonObject, reply: Reply, manager: str) -> None:
    after = reply.document
    _check_books(after)
    mine = owned(after).get((manager, "Update", ""), set())
    for key, paths in owned(after).items():
        if key[:2] == (manager, "Update"):
            continue
        for path in paths:
            is_unchanged = _is_kept(path, before, after)
            assert is_unchanged or _within(path, mine), f"{manager} changed {path} of {key}"
    again = _repeated(before, after)
    assert again is (before["metadata"]["resourceVersion"] == reply.rv)


def _is_kept(path: Path, before: JsonObject, after: JsonObject) -> bool:
    """Whether what is owned by a path is as it was; of a map that is only that it is there."""
    old, new = at(before, path), at(after, path)
    return old == new or (isinstance(old, dict) and isinstance(new, dict))


def _within(path: Path, paths: set[Path]) -> bool:
    """Whether what is below the path is in the set."""
    return any(other[: len(path)] == path for other in paths)


def _repeated(before: JsonObject, after: JsonObject) -> bool:
    return {**before, "metadata": 0} == {**after, "metadata": 0} and all(
        before["metadata"].get(name) == after["metadata"].get(name)
        for name in ("labels", "annotations")
    )


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_apply_keeps_its_promises(first: int):
    conflicts = 0
    seeds = range(first, min(first + CHUNK, SEEDS))
    for seed in seeds:
        history = _History(seed)
        try:
            for _ in range(history.random.choice((6, 12, 20))):
                history.turn()
        except BaseException as error:
            error.add_note(f"seed {seed}, {history.subject.path}")
            raise
        conflicts += history.conflicts
    assert conflicts > len(seeds) // 2
