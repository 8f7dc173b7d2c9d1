"""Query parameters of questions about the past."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from fleetbus_query_api.requests.parameters import (
    MAX_PAGE,
    MAX_TIME,
    PlaceParameters,
    SelectionParameters,
)

_POINT: Final = "A time as in RFC 3339, or `10m`, `2h`, `1d` back from now"


class DeletedParameters(SelectionParameters):
    """Which deletions to list."""

    since: str = Field(
        default="1h",
        min_length=1,
        max_length=MAX_TIME,
        description=f"{_POINT}.",
    )
    limit: int = Field(
        default=500, ge=1, le=MAX_PAGE, description="Deletions, at most; the last ones."
    )


class TimelineParameters(BaseModel):
    """Part of the past of an object to show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str = Field(
        default="1d",
        min_length=1,
        max_length=MAX_TIME,
        description=f"{_POINT}.",
    )
    limit: int = Field(default=100, ge=1, le=500, description="Changes, at most; the last ones.")


class ChangesParameters(PlaceParameters):
    """Which changes of the fleet to show."""

    since: str = Field(default="10m", min_length=1, max_length=MAX_TIME, description=f"{_POINT}.")
    until: str = Field(
        default="", max_length=MAX_TIME, description=f"{_POINT}; now, if it is empty."
    )
    resource: str = Field(
        default="",
        max_length=512,
        description="Only this resource: `pods`, `deploy`, `apps/v1/deployments`.",
    )
    owned: bool = Field(
        default=False,
        description="Also objects that another one owns, like the pods of a ReplicaSet."
        " What a MultiClusterResource wrote is always shown.",
    )
    limit: int = Field(default=200, ge=1, le=MAX_PAGE, description="Groups, at most.")
