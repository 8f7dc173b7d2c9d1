# ruff: noqa: N815 -- names as in the answer
"""Models of the answers, for OpenAPI only."""

from __future__ import annotations

from fleetbus_query_api.responses.openapi import AnswerModel, FreshAnswerModel


class BreakerModel(AnswerModel):
    """The open breaker of a cluster that does not answer."""

    failures: int
    """In a row."""
    opened: int
    """Number of openings since the last success."""
    probing: bool
    nextProbeSeconds: float


class QueuedClusterModel(AnswerModel):
    """The items of one cluster in a queue, by priority."""

    cluster: str
    live: int
    retry: int
    initial: int
    oldestSeconds: float | None
    """Age of the oldest ready item; null without one."""
    quarantined: int
    breaker: BreakerModel | None
    """Null while the cluster is tried as usual."""


class ProcessedItemModel(AnswerModel):
    """An item that a worker is processing."""

    cluster: str
    namespace: str
    name: str
    worker: str
    """Host and process id; empty if they are unknown."""
    fence: str
    leaseSeconds: float
    """The rest of its lease; negative once it has expired."""


class QuarantinedItemModel(AnswerModel):
    """An item whose workers keep dying."""

    cluster: str
    namespace: str
    name: str
    times: int
    nextTrySeconds: float


class QueueModel(AnswerModel):
    """The workqueue of one controller."""

    controller: str
    ready: int
    delayed: int
    processing: int
    quarantined: int
    oldestSeconds: float | None
    clusters: list[QueuedClusterModel]
    processingItems: list[ProcessedItemModel]
    """At most 500."""
    quarantinedItems: list[QuarantinedItemModel]
    """At most 500."""


class QueueListModel(AnswerModel):
    """The queues of all controllers, by name."""

    items: list[QueueModel]
    askedAt: str
    """By the clock of the store; the queues are as they were then, or later."""


class DeletionBudgetModel(AnswerModel):
    """The deletions that no edit asked for, in the whole fleet."""

    used: int
    allowed: int
    windowSeconds: int


class HeldModel(AnswerModel):
    """The held deletions of one MultiClusterResource."""

    namespace: str
    name: str
    reason: str
    objects: int
    clusters: list[str]
    planHash: str
    """The value of the annotation `fleetbus.dev/confirm-prune` that releases them."""
    confirmed: bool
    message: str


class HeldDeletionsModel(FreshAnswerModel):
    """The deletions that wait for a person, by namespace and name."""

    budget: DeletionBudgetModel
    held: list[HeldModel]
