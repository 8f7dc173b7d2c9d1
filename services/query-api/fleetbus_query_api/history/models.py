"""Models of the answers about the past, for OpenAPI only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetbus_query_api.responses.openapi import (
    AnswerModel,
    FreshAnswerModel,
    ItemModel,
    ResourceModel,
    UndeterminedModel,
    WindowModel,
)

_Value = str | float | bool | None


class HistoryModel(AnswerModel):
    """Period for which the past is known."""

    window: WindowModel


class ChangedFieldModel(AnswerModel):
    """A field that has changed."""

    path: str
    before: _Value
    """At most 200 characters, JSON for maps and lists; null if it was absent."""
    after: _Value


class CauseModel(AnswerModel):
    """Who did something."""

    kind: str
    namespace: str
    name: str


class DeletedItemModel(ItemModel):
    """A deletion, with the object as it was last."""

    deletedAt: str  # noqa: N815 -- as in the answer
    """When the event was stored."""
    clusterUid: str  # noqa: N815 -- as in the answer
    """UID of the namespace kube-system of the cluster that it was deleted from."""
    foundByList: bool  # noqa: N815 -- as in the answer
    """A list found that it was gone: it may have been deleted earlier."""
    deletedBy: CauseModel | None  # noqa: N815 -- as in the answer
    """The MultiClusterResource, if the distributor deleted it and you may list those; else null."""
    existsAgain: bool  # noqa: N815 -- as in the answer
    """Whether an object of that name exists now."""


class DeletedListModel(FreshAnswerModel):
    """Deletions, the latest first."""

    items: list[DeletedItemModel]
    since: str
    remaining: int
    """Number of earlier deletions since then."""
    undecided: dict[str, int]
    """By cluster: how many may match or not, because their last state is unknown."""
    window: WindowModel
    resource: ResourceModel


class TimelineObjectModel(AnswerModel):
    """The object of a timeline."""

    cluster: str
    resource: str
    """`<group>/<plural>`."""
    namespace: str
    name: str


class TimelineChangeModel(AnswerModel):
    """A change of the object."""

    time: str
    stage: Literal["change"]
    verb: Literal["added", "modified", "deleted", "listed"]
    resourceVersion: str  # noqa: N815 -- as in the answer
    uid: str
    sequence: int
    """In the stream."""
    observedAt: str  # noqa: N815 -- as in the answer
    """By the watcher."""
    storedAt: str  # noqa: N815 -- as in the answer
    """In the stream."""
    storedAfterSeconds: float | None  # noqa: N815 -- as in the answer
    """None if the watcher's time is malformed."""
    foundByList: bool  # noqa: N815 -- as in the answer
    degraded: str
    differences: list[ChangedFieldModel]
    """To the state before, if that is known; at most 50."""
    moreDifferences: int  # noqa: N815 -- as in the answer


class TimelineRequestModel(AnswerModel):
    """The request of a run."""

    cluster: str
    namespace: str
    name: str


class TimelineRunModel(AnswerModel):
    """The last run of a controller for the object, or for its owner."""

    time: str
    stage: Literal["reconcile"]
    controller: str
    request: TimelineRequestModel
    outcome: str
    attempt: int
    queuedAt: str  # noqa: N815 -- as in the answer
    startedAt: str  # noqa: N815 -- as in the answer
    endedAt: str  # noqa: N815 -- as in the answer
    waitedSeconds: float  # noqa: N815 -- as in the answer
    ranSeconds: float  # noqa: N815 -- as in the answer
    error: str


class TimelineDistributionModel(AnswerModel):
    """A report of the distributor about the object's MultiClusterResource in this cluster."""

    time: str
    stage: Literal["distribution"]
    owner: CauseModel
    event: str
    revision: int
    wave: str
    objects: list[str]
    reason: str
    message: str


class TimelineModel(FreshAnswerModel):
    """The history of one object, the latest last."""

    object: TimelineObjectModel
    since: str
    entries: list[TimelineChangeModel | TimelineRunModel | TimelineDistributionModel]
    hasMore: bool  # noqa: N815 -- as in the answer
    """Whether there are earlier changes since then."""
    window: WindowModel
    resource: ResourceModel


class ChangeGroupModel(AnswerModel):
    """Equal changes of objects of one name."""

    resource: ResourceModel
    namespace: str
    name: str
    change: Literal["added", "modified", "deleted"]
    clusters: list[str]
    others: list[str]
    """Further clusters that have an object of this name now."""
    differences: list[ChangedFieldModel]
    """At most 50."""
    moreDifferences: int  # noqa: N815 -- as in the answer
    writtenBy: CauseModel | None  # noqa: N815 -- as in the answer
    """The MultiClusterResource that owns them, if one does and you may list it."""


class ReportedObjectModel(AnswerModel):
    """An object, or a field of it, that a report of the distributor is about."""

    object: str
    """Kind, namespace and name, like `ConfigMap shop/flags`."""
    field: str
    manager: str
    """The field manager that changed or holds the field."""


class ReportModel(AnswerModel):
    """Equal reports of the distributor: corrected drift, a failed rollout, what was undone."""

    owner: CauseModel
    event: str
    clusters: list[str]
    """Empty if it is about the rollout."""
    revision: int
    wave: str
    objects: list[ReportedObjectModel]
    moreObjects: int  # noqa: N815 -- as in the answer
    reason: str
    message: str
    first: str
    last: str
    count: int


class ChangesModel(FreshAnswerModel):
    """The changes between two points in time, those of most clusters first."""

    from_time: str = Field(alias="from")
    to: str
    groups: list[ChangeGroupModel]
    distribution: list[ReportModel]
    """Reports of the MultiClusterResources that you may list on the hub, the latest first."""
    distributionCount: int  # noqa: N815 -- as in the answer
    changedObjects: int  # noqa: N815 -- as in the answer
    ownedObjects: int  # noqa: N815 -- as in the answer
    """Number of objects that were left out because they have an owner."""
    groupCount: int  # noqa: N815 -- as in the answer
    truncated: bool
    """Whether there are more groups, or more than 50,000 objects that may have changed."""
    undetermined: list[UndeterminedModel]
    """At most 100."""
    window: WindowModel
