"""Query parameters of questions about the past."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from fleetbus_query_api.answers.parameters import MAX_PAGE, MAX_SELECTOR, MAX_TIME, Names

_MAX_CLUSTERS: Final = 1000
_NAME: Final = r"^[^/\x00-\x1f\x7f]*$"
_POINT: Final = "A time as in RFC 3339, or `10m`, `2h`, `1d` back from now"


class DeletedParameters(BaseModel):
    """Which deletions to list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str = Field(
        default="1h",
        min_length=1,
        max_length=MAX_TIME,
        description=f"{_POINT}.",
    )
    cluster: Names = Field(
        default=[], max_length=_MAX_CLUSTERS, description="Only these clusters, as in a list."
    )
    namespace: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only this namespace."
    )
    name: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only objects of this name."
    )
    label_selector: str = Field(
        default="", alias="labelSelector", max_length=MAX_SELECTOR, description="As in a list."
    )
    field_selector: str = Field(
        default="", alias="fieldSelector", max_length=MAX_SELECTOR, description="As in a list."
    )
    limit: int = Field(
        default=500, ge=1, le=MAX_PAGE, description="Deletions, at most; the last ones."
    )


class TimelineParameters(BaseModel):
    """How much of the past of an object to show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str = Field(
        default="1d",
        min_length=1,
        max_length=MAX_TIME,
        description=f"{_POINT}.",
    )
    limit: int = Field(default=100, ge=1, le=500, description="Changes, at most; the last ones.")


class ChangesParameters(BaseModel):
    """Which changes of the fleet to show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str = Field(default="10m", min_length=1, max_length=MAX_TIME, description=f"{_POINT}.")
    until: str = Field(
        default="", max_length=MAX_TIME, description=f"{_POINT}; now, if it is empty."
    )
    resource: str = Field(
        default="",
        max_length=512,
        description="Only this resource: `pods`, `deploy`, `apps/v1/deployments`.",
    )
    cluster: Names = Field(
        default=[], max_length=_MAX_CLUSTERS, description="Only these clusters, as in a list."
    )
    namespace: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only this namespace."
    )
    owned: bool = Field(
        default=False,
        description="Also objects that another one owns, like the pods of a ReplicaSet.",
    )
    limit: int = Field(default=200, ge=1, le=MAX_PAGE, description="Groups, at most.")
