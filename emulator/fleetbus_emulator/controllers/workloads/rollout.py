"""Rollout of a Deployment from one template to the next: pure computation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.pods.behavior import DOMAIN

JsonObject = dict[str, Any]
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
HASH_LENGTH = 10
HASH_LABEL = "pod-template-hash"
DEPLOYMENT = "deployment.kubernetes.io/"
REVISION = f"{DEPLOYMENT}revision"
REVISION_HISTORY = f"{DEPLOYMENT}revision-history"
DESIRED_REPLICAS = f"{DEPLOYMENT}desired-replicas"
MAX_REPLICAS = f"{DEPLOYMENT}max-replicas"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
NOT_COPIED = frozenset({LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS})


def template_hash(template: JsonObject, collisions: int = 0) -> str:
    """The hash of a pod template, in the letters that Kubernetes uses for it."""
    text = orjson.dumps([template, collisions], option=orjson.OPT_SORT_KEYS)
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
    letters: list[str] = []
    for _ in range(HASH_LENGTH):
        number, index = divmod(number, len(ALPHABET))
        letters.append(ALPHABET[index])
    return "".join(letters)


def without_hash(template: JsonObject) -> JsonObject:
    """The template as the Deployment has it: without the label that its ReplicaSet adds."""
    meta = mapping(template, "metadata")
    labels = {k: v for k, v in mapping(meta, "labels").items() if k != HASH_LABEL}
    fields = {name: value for name, value in meta.items() if name != "labels" and value is not None}
    return {**template, "metadata": {**fields, "labels": labels}}


def with_label(labelled: JsonObject, name: str, value: str) -> JsonObject:
    """An object or a template with one more label in its metadata."""
    meta = mapping(labelled, "metadata")
    labels = {**mapping(meta, "labels"), name: value}
    return {**labelled, "metadata": {**meta, "labels": labels}}


@dataclass(frozen=True, slots=True)
class Limits:
    """By how much a rolling update may leave the desired number of pods.

    Attributes:
        desired: What spec.replicas asks for.
        surge: Pods above it.
        unavailable: Pods below it that may be unavailable.
    """

    desired: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        """The largest number of pods."""
        return self.desired + self.surge

    @property
    def least_available(self) -> int:
        """The smallest number of available pods."""
        return self.desired - self.unavailable


def share(value: Any, total: int, *, round_up: bool) -> int:
    """A number, or a percentage of a total such as `25%`."""
    if not isinstance(value, str):
        return int(value or 0)
    hundredths = total * int(value.removesuffix("%"))
    return -(-hundredths // 100) if round_up else hundredths // 100


def limits_of(deployment: JsonObject) -> Limits:
    """The limits of a Deployment; those of Recreate are the strictest."""
    spec = mapping(deployment, "spec")
    desired = spec.get("replicas", 1)
    if mapping(spec, "strategy").get("type") == "Recreate":
        return Limits(desired, 0, 0)
    rolling = mapping(spec, "strategy", "rollingUpdate")
    surge = share(rolling.get("maxSurge", "25%"), desired, round_up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), desired, round_up=False)
    if not surge and not unavailable:
        unavailable = 1  # both may round to none, and then nothing would ever move
    return Limits(desired, surge, min(unavailable, desired))


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a ReplicaSet.

    Attributes:
        spec: What it asks for.
        available: How much of it is available.
        desired: What its Deployment asked for when it was last resized; None if unknown.
        most: What its Deployment allowed then; 0 if unknown.
    """

    spec: int
    available: int = 0
    desired: int | None = None
    most: int = 0


def scale_of(replica_set: JsonObject) -> Scale:
    """The size of a ReplicaSet."""
    annotations = mapping(replica_set, "metadata", "annotations")
    return Scale(
        spec=mapping(replica_set, "spec").get("replicas", 0),
        available=mapping(replica_set, "status").get("availableReplicas", 0),
        desired=_number(annotations.get(DESIRED_REPLICAS)),
        most=_number(annotations.get(MAX_REPLICAS)) or 0,
    )


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Step:
    """The sizes that the ReplicaSets shall have next."""

    new: int
    old: tuple[int, ...]


def rolling_step(limits: Limits, new: Scale, old: Sequence[Scale]) -> Step:
    """One step of a rolling update: first the new ReplicaSet grows, then the old ones shrink.

    Args:
        limits: The limits.
        new: The ReplicaSet of the present template.
        old: The others, oldest first.
    """
    unchanged = tuple(scale.spec for scale in old)
    grown = _grown(limits, new, sum(unchanged))
    if grown != new.spec:
        return Step(grown, unchanged)
    return Step(new.spec, _shrunk(limits, new, old))


def _grown(limits: Limits, new: Scale, old_total: int) -> int:
    if new.spec >= limits.desired:
        return limits.desired
    room = limits.most - old_total - new.spec
    return new.spec + max(0, min(room, limits.desired - new.spec))


def _shrunk(limits: Limits, new: Scale, old: Sequence[Scale]) -> tuple[int, ...]:
    total = new.spec + sum(scale.spec for scale in old)
    pending = max(0, new.spec - new.available)
    budget = total - limits.least_available - pending
    if budget <= 0:
        return tuple(scale.spec for scale in old)
    sizes = [scale.spec for scale in old]
    for place, scale in enumerate(old):  # unavailable pods are scaled down first
        sick = min(budget, max(0, scale.spec - scale.available))
        sizes[place] -= sick
        budget -= sick
    spare = new.available + sum(scale.available for scale in old) - limits.least_available
    for place in range(len(sizes)):
        fewer = max(0, min(sizes[place], spare, budget))
        sizes[place] -= fewer
        spare -= fewer
        budget -= fewer
    return tuple(sizes)


def is_resized(limits: Limits, scales: Iterable[Scale]) -> bool:
    """Whether the Deployment asks for another size than when its ReplicaSets were sized."""
    return any(s.spec and s.desired not in (None, limits.desired) for s in scales)


def resize_step(limits: Limits, new: Scale | None, old: Sequence[Scale], *, rolling: bool) -> Step:
    """The sizes after a change of spec.replicas: in the middle of a rollout, in proportion.

    Args:
        limits: The limits.
        new: The ReplicaSet of the present template; None before it is created.
        old: The others, oldest first.
        rolling: Whether the Deployment updates in a rolling manner.
    """
    scales = [*old, *([new] if new is not None else [])]
    sizes = [scale.spec for scale in scales]
    active = [place for place, scale in enumerate(scales) if scale.spec]
    if not scales:
        return Step(0, ())
    if len(active) <= 1:
        sizes[active[0] if active else -1] = limits.desired
    elif new is not None and new.desired == new.spec == new.available == limits.desired:
        sizes = [*(0 for _ in old), new.spec]
    elif rolling:
        sizes = _in_proportion(limits, scales, active)
    return Step(sizes[-1] if new is not None else 0, tuple(sizes[: len(old)]))


def _in_proportion(limits: Limits, scales: Sequence[Scale], active: Sequence[int]) -> list[int]:
    sizes = [scale.spec for scale in scales]
    missing = (limits.most if limits.desired else 0) - sum(sizes)
    # The largest bears the rounding; of equals, the newest grows and the oldest shrinks.
    tie = -1 if missing > 0 else 1
    order = sorted(active, key=lambda place: (-sizes[place], tie * place))
    left = missing
    for place in order:
        scale = scales[place]
        share_of_all = -scale.spec
        if limits.desired and scale.most:
            share_of_all = round(scale.spec * limits.most / scale.most) - scale.spec
        change = min(share_of_all, left) if missing > 0 else max(share_of_all, left)
        sizes[place] += change
        left -= change
    if order:
        sizes[order[0]] = max(0, sizes[order[0]] + left)
    return sizes


def recreate_step(limits: Limits, new: Scale, old: Sequence[Scale], old_pods: int) -> Step:
    """One step of a Recreate: the new ReplicaSet grows when no old pod is left."""
    size = new.spec if old_pods or any(scale.spec for scale in old) else limits.desired
    return Step(size, tuple(0 for _ in old))


def copied_annotations(deployment: JsonObject) -> JsonObject:
    """The annotations that a ReplicaSet takes over from its Deployment, and then keeps.

    Settings to misbehave are not copied: pods find them on the Deployment itself, as long as they
    are there.
    """
    annotations = mapping(deployment, "metadata", "annotations")
    return {
        name: value
        for name, value in annotations.items()
        if name not in NOT_COPIED and not name.startswith(DOMAIN)
    }


def revision_of(obj: JsonObject) -> int:
    """The revision in the annotations; 0 if there is none that can be read."""
    text = str(mapping(obj, "metadata", "annotations").get(REVISION) or "")
    return int(text) if text.isdecimal() else 0


def revision_annotations(new: JsonObject | None, old: Sequence[JsonObject]) -> JsonObject:
    """The revision annotations of the new ReplicaSet: one above the others', the past kept."""
    highest = max((revision_of(replica_set) for replica_set in old), default=0)
    present = revision_of(new) if new is not None else 0
    if new is None or not present:
        return {REVISION: str(highest + 1)}
    annotations = mapping(new, "metadata", "annotations")
    past = annotations.get(REVISION_HISTORY)
    if present > highest:
        return {REVISION: str(present)} | ({REVISION_HISTORY: past} if past else {})
    history = f"{past},{present}" if past else str(present)
    return {REVISION: str(highest + 1), REVISION_HISTORY: history}
