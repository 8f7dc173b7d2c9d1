"""Models of the answers, for OpenAPI only.

Answers are joined from stored bytes and never pass through these models; tests check that the
answers fit them.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field


class AnswerModel(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class FreshnessModel(AnswerModel):
    """The freshness of the answer of one cluster."""

    state: Literal["unknown", "listing", "synced", "stale", "degraded"]
    complete: bool
    """Whether everything requested is synced and watched, and the API server answers."""
    ageSeconds: float | None  # noqa: N815 -- as in the answer
    """Time since the API server last sent anything; null if it never did."""
    reason: str
    """Why it is incomplete."""


class FreshAnswerModel(AnswerModel):
    """An answer that says how fresh it is."""

    freshness: dict[str, FreshnessModel]
    """By cluster."""
    incomplete: list[str]
    """The clusters whose part of the answer may lack something or be outdated."""


class ResourceModel(AnswerModel):
    """The resource that an answer is about."""

    group: str
    """`core` for the core group."""
    plural: str
    kind: str
    namespaced: bool
    versions: list[str]
    """All that are served by any cluster."""


class TypeModel(ResourceModel):
    """A type of resource, with its names."""

    singular: str
    shortNames: list[str]  # noqa: N815 -- as in the answer
    categories: list[str]


class TypeListModel(AnswerModel):
    """The types of resources in the fleet that the user may know of."""

    items: list[TypeModel]


class VersionModel(AnswerModel):
    """The release that answers."""

    version: str
    commit: str
    """The commit that it was built from; empty if it runs from a clone."""


class ItemModel(AnswerModel):
    """One object and the cluster it is in."""

    cluster: str
    object: dict[str, Any] | None
    """As the API server returned it; null if the body is unknown, see `degraded`."""
    namespace: str = ""
    """Only without an object, like the next three."""
    name: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 -- as in the answer
    degraded: str = ""
    """Why the body is missing: `oversized` (for the bus), `unreadable` or `absent`."""


class GapModel(AnswerModel):
    """A time about which less is known."""

    cluster: str | None
    """Null if it is about all of them."""
    from_time: str | None = Field(alias="from")
    """Null if it is unknown."""
    to: str
    reason: str


class WindowModel(AnswerModel):
    """The time that the events cover, and its gaps."""

    from_time: str = Field(alias="from")
    to: str
    gaps: list[GapModel]


class UndeterminedModel(AnswerModel):
    """An object of which it is unknown whether, or how, it existed."""

    cluster: str
    resource: str
    namespace: str
    name: str
    reason: str
    knownFrom: str  # noqa: N815 -- as in the answer
    """From then on it is known what the object was."""


class ListModel(FreshAnswerModel):
    """A page of objects in the order cluster, namespace, name, or in the one that was asked for."""

    items: list[ItemModel]
    continue_token: str = Field(alias="continue")
    """For the next page; empty on the last one."""
    remaining: int | None
    """Number of objects after this page; null if they were not counted."""
    resourceVersion: str  # noqa: N815 -- as in the answer
    """Version of the whole snapshot, before the first object was read."""
    resource: ResourceModel
    asOf: str = ""  # noqa: N815 -- as in the answer
    """Only of a list of the past, like the next two."""
    window: WindowModel | None = None
    undetermined: list[UndeterminedModel] = []
    """At most 100 per page."""


class ObjectModel(ItemModel, FreshAnswerModel):
    """One object."""

    resource: ResourceModel


class AgentModel(AnswerModel):
    """The agents of a cluster that the hub cannot reach."""

    connected: bool
    """Whether one of them took the last request of the hub, which asks each half a minute."""
    reason: str
    """Why none did, or why its API server did not answer."""
    message: str
    answeredAt: str  # noqa: N815 -- as in the answer
    """When one of them last answered; empty for never."""


class ClusterModel(AnswerModel):
    """One cluster of the fleet."""

    name: str
    labels: dict[str, str]
    hub: bool
    provider: str
    """The provider that defines it."""
    host: str
    access: str
    """The way to its API server: `Direct` or `Agent`."""
    agent: AgentModel | None
    """Null for direct access, and until the agents were asked for the first time."""
    serverVersion: str  # noqa: N815 -- as in the answer
    platform: str
    """Platform of its API server, like `linux/amd64`."""
    connected: bool
    """As its watcher reported last."""
    reason: str
    """Why it is not connected, or what its API server reports: `NotReady`."""
    message: str
    lastAnswer: str  # noqa: N815 -- as in the answer
    """When its API server last sent anything."""
    reportedAt: str  # noqa: N815 -- as in the answer
    """When a watcher last reported it."""
    joinedAt: str  # noqa: N815 -- as in the answer
    complete: bool
    """Whether its API server answered within 30 s, and all its resources are complete."""
    resourceCount: int  # noqa: N815 -- as in the answer
    completeResourceCount: int  # noqa: N815 -- as in the answer


class ClusterListModel(FreshAnswerModel):
    """All clusters, by name."""

    items: list[ClusterModel]


class ClusterResourceModel(FreshnessModel):
    """One watched resource of one cluster."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    objects: int | None
    """Number of objects; null if you may not list all of them, or they were not counted."""
    lastReceived: str  # noqa: N815 -- as in the answer
    """When the last byte of its list or watch came; a quiet resource may have none for long."""


class ClusterDetailModel(ClusterModel, FreshAnswerModel):
    """One cluster with its resources."""

    resources: list[ClusterResourceModel]
    uncountedResourceCount: int  # noqa: N815 -- as in the answer
    """Resources whose objects were not counted: 500 are, because each takes an access review."""


class GroupModel(AnswerModel):
    """The objects whose fields have the same values."""

    values: dict[str, str | float | bool | None]
    """By field, as it was asked for; null if it is absent, `<map or list>` for what has fields."""
    count: int


class CountModel(FreshAnswerModel):
    """Number of objects, and their groups."""

    total: int
    groups: list[GroupModel]
    """The largest first."""
    groupCount: int  # noqa: N815 -- as in the answer
    """Number of groups, including those beyond `limit`."""
    others: int
    """Objects in no group, because there were more than 10,000; `groupCount` stops there."""
    resourceVersion: str  # noqa: N815 -- as in the answer
    """Version of the whole snapshot; the counted objects are at least as new."""
    resource: ResourceModel


class VariantModel(AnswerModel):
    """Clusters in which an object is the same."""

    digest: str
    """Digest of the object without the fields that its cluster filled in."""
    clusters: list[str]


class DifferenceModel(AnswerModel):
    """A field that differs."""

    path: str
    values: dict[str, str | float | bool | None]
    """By digest, the first 200 characters; null if it is absent, a map or list as JSON."""


class MarkedOwnerModel(AnswerModel):
    """The owner that the mark of fleetbus names, a MultiClusterResource say."""

    kind: str
    cluster: str
    namespace: str
    name: str
    uid: str


class OutlierModel(AnswerModel):
    """Objects of one namespace and name that differ."""

    namespace: str
    name: str
    variants: list[VariantModel]
    """The one of most clusters first."""
    differences: list[DifferenceModel]
    """Between the first five variants that were found; at most 50."""
    owner: MarkedOwnerModel | None
    """The owner in another cluster that every one of the objects names; null without one."""


class OutlierListModel(FreshAnswerModel):
    """Names whose objects differ between clusters, by namespace and name."""

    items: list[OutlierModel]
    continue_token: str = Field(alias="continue")
    """For the next page; empty on the last one."""
    remaining: int
    """Number of names after this page."""
    resourceVersion: str  # noqa: N815 -- as in the answer
    """Version of the whole snapshot; the objects are at least as new."""
    resource: ResourceModel


class PlacedModel(AnswerModel):
    """Where an object is."""

    cluster: str
    resource: ResourceModel
    namespace: str
    """Empty for objects without one."""
    name: str
    uid: str
    resourceVersion: str  # noqa: N815 -- as in the answer
    """In its own cluster."""


class WhereModel(FreshAnswerModel):
    """The objects of a name, by cluster, resource and namespace."""

    items: list[PlacedModel]
    remaining: int
    """Number of objects beyond `limit`."""


class ChildModel(PlacedModel):
    """An object that another one owns."""

    ownerUid: str  # noqa: N815 -- as in the answer
    depth: int
    """1 for a child, 2 for a child of a child."""


class ChildrenModel(FreshAnswerModel):
    """The children of an object, the nearest first."""

    items: list[ChildModel]
    hasMore: bool  # noqa: N815 -- as in the answer
    """Whether there are more than `limit`."""


class OwnerModel(AnswerModel):
    """An owner, as the object names it."""

    cluster: str
    apiVersion: str  # noqa: N815 -- as in the answer
    kind: str
    namespace: str
    name: str
    uid: str
    controller: bool
    depth: int
    """1 for an owner, 2 for the owner of an owner."""
    found: bool
    """Whether it exists with this UID, and you may get it."""
    resource: ResourceModel | None
    """Null if it was not found."""


class OwnersModel(FreshAnswerModel):
    """The owners of an object, the nearest first."""

    items: list[OwnerModel]
    hasMore: bool  # noqa: N815 -- as in the answer
    """Whether there are more than 100."""


class ProblemModel(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


_PROBLEM: Final = {"application/problem+json": {"schema": ProblemModel.model_json_schema()}}


def describe_answers(model: type[Any], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe answers for OpenAPI only, so that FastAPI never builds the model.

    `default` replaces the form of errors of FastAPI, which we never send.
    """
    problems = {
        status: {"content": _PROBLEM} for status in (400, 401, *statuses, 405, 421, 429, 503)
    }
    default = {"description": "Any other error", "content": _PROBLEM}
    return {200: {"model": model}, **problems, "default": default}
