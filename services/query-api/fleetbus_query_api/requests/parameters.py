"""Query parameters; unknown ones are refused, never ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self, cast

from fastapi import Path, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleetbus_query_api.requests.paging import MAX_TOKEN
from fleetbus_query_api.responses.problem import BadRequestProblem

MAX_PAGE: Final = 1000
"""Objects per page (rule A8)."""

MAX_REQUIREMENTS: Final = 32
"""Requirements of a selector: each is evaluated for each scanned object (rule A8)."""
MAX_SELECTOR: Final = 4096
"""Characters (rule A8)."""
MAX_TIME: Final = 40
"""Characters of a point in time."""
_MAX_CLUSTERS: Final = 1000
_REPEATABLE: Final = frozenset({"cluster"})

_NAME = r"^[^/\x00-\x1f\x7f]*$"


def _split(value: object) -> object:
    """Split at commas: `cluster=a,b&cluster=c` names three clusters."""
    if not isinstance(value, list):
        return value
    parts = cast("list[object]", value)
    return [name for item in parts for name in str(item).split(",") if name]


Names = Annotated[list[str], BeforeValidator(_split)]


def require_few(selector: str, count: int) -> None:
    """Refuse a selector with too many requirements.

    Raises:
        BadRequest: it has more than `MAX_REQUIREMENTS`.
    """
    if count > MAX_REQUIREMENTS:
        raise BadRequestProblem(
            f"{selector} has {count} requirements; at most {MAX_REQUIREMENTS} are allowed"
        )


ResourcePath = Annotated[str, Path(description="Like `pods`, `deploy` or `apps/v1/deployments`.")]
NamespacePath = Annotated[
    str,
    Path(description="`-` for an object without a namespace."),
    AfterValidator(lambda text: "" if text == "-" else text),
]


class NoParameters(BaseModel):
    """A request without parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ListParameters(BaseModel):
    """Which objects of a resource to list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: Names = Field(
        default=[],
        max_length=_MAX_CLUSTERS,
        description="Only these clusters: repeat it, or separate names by commas. "
        "One that is not in the fleet has no objects and is listed in `incomplete`.",
    )
    namespace: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only this namespace."
    )
    name: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only objects of this name."
    )
    label_selector: str = Field(
        default="",
        alias="labelSelector",
        max_length=MAX_SELECTOR,
        description="As of kubectl: `app=web,tier!=db,env in (prod, test),!legacy`.",
    )
    field_selector: str = Field(
        default="",
        alias="fieldSelector",
        max_length=MAX_SELECTOR,
        description="`path=value`, `path!=value`, `path in (a, b)` or `path notin (a, b)` on any "
        "field, like `status.phase=Running,spec.containers[*].image!=nginx:1.27`. A page may then "
        "hold fewer objects than `limit`, even none, and have another one after it.",
    )
    sort: str = Field(
        default="",
        max_length=MAX_SELECTOR,
        description="Up to 4 fields, the first one decides first, `-` before one for the reverse: "
        "`-status.startTime,metadata.name`. Numbers, quantities and times are sorted by size, "
        "objects without the field come last, equal ones by cluster, namespace and name.",
    )
    fields: str = Field(
        default="",
        max_length=MAX_SELECTOR,
        description="Only these fields of each object, up to 32: `metadata.name,status.phase`.",
    )
    limit: int = Field(default=500, ge=1, le=MAX_PAGE, description="Objects per page, at most.")
    continue_token: str = Field(
        default="",
        alias="continue",
        max_length=MAX_TOKEN,
        description="`continue` of the previous page; the other parameters must be the same.",
    )
    as_of: str = Field(
        default="",
        alias="asOf",
        max_length=MAX_TIME,
        description="The objects as they were then: a time as in RFC 3339, or `10m`, `2h` back from"
        " now. All pages are of the same time, and none is sorted. What is not known of it is in"
        " `undetermined` and `window`.",
    )
    view: Literal["objects", "table"] = Field(
        default="objects",
        description="`table` streams the columns of kubectl as JSON lines: first the columns, then "
        "an array of strings for each object, last `end`. Without `limit` these are all objects; "
        "with it, `end` has `continue` for the rows after them.",
    )
    wide: bool = Field(
        default=False, description="With `view=table`: the columns of `-o wide` too."
    )
    show_labels: bool = Field(
        default=False,
        alias="showLabels",
        description="With `view=table`: a last column with the labels.",
    )

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        if self.view != "table" and (self.wide or self.show_labels):
            raise ValueError("wide and showLabels need view=table")
        return self


class PlaceParameters(BaseModel):
    """Where in the fleet to look."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: Names = Field(
        default=[], max_length=_MAX_CLUSTERS, description="Only these clusters, as in a list."
    )
    namespace: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only this namespace."
    )


class SelectionParameters(PlaceParameters):
    """Which objects of a resource a question is about."""

    name: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only objects of this name."
    )
    label_selector: str = Field(
        default="", alias="labelSelector", max_length=MAX_SELECTOR, description="As in a list."
    )
    field_selector: str = Field(
        default="", alias="fieldSelector", max_length=MAX_SELECTOR, description="As in a list."
    )


class CountParameters(SelectionParameters):
    """Which objects of a resource to count, and by what."""

    by: str = Field(
        default="",
        max_length=MAX_SELECTOR,
        description="Up to 4 fields whose values make a group, or `cluster`: "
        "`status.phase,cluster`, `metadata.labels.app`. An object with many values "
        "(`spec.containers[*].image`) is in the group of each. Without any only the total is "
        "counted.",
    )
    limit: int = Field(
        default=100, ge=1, le=MAX_PAGE, description="Groups, at most; the largest ones."
    )


class OutlierParameters(SelectionParameters):
    """Which objects of a resource to compare between clusters."""

    limit: int = Field(default=50, ge=1, le=100, description="Names per page, at most.")
    continue_token: str = Field(
        default="",
        alias="continue",
        max_length=MAX_TOKEN,
        description="`continue` of the previous page; the other parameters must be the same.",
    )


class WhereParameters(BaseModel):
    """Which name to look for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        min_length=1, max_length=253, pattern=_NAME, description="The name of the objects."
    )
    namespace: str = Field(
        default="",
        max_length=253,
        pattern=_NAME,
        description="Only this namespace; `-` for objects without one.",
    )
    kind: str = Field(
        default="",
        max_length=253,
        pattern=_NAME,
        description="Only this kind, or resource: `Deployment`, `deployments`, `deployments.apps`.",
    )
    cluster: Names = Field(
        default=[], max_length=_MAX_CLUSTERS, description="Only these clusters, as in a list."
    )
    limit: int = Field(default=500, ge=1, le=MAX_PAGE, description="Objects, at most.")


class ChildrenParameters(BaseModel):
    """Depth to which the children of an object are followed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(
        default=1, ge=1, le=5, description="1 for children only, 2 for their children too."
    )
    limit: int = Field(default=500, ge=1, le=MAX_PAGE, description="Objects, at most.")


async def refuse_repeats(request: Request) -> None:  # FastAPI calls others in a thread
    """Refuse a parameter that is given twice, because it is ambiguous.

    Raises:
        BadRequest: there is one.
    """
    check_repeats([name for name, _ in request.query_params.multi_items()], _REPEATABLE)


def check_repeats(names: Sequence[str], repeatable: frozenset[str] = frozenset()) -> None:
    """Refuse names that occur twice and are not repeatable.

    Raises:
        BadRequest: there is one.
    """
    for name, count in Counter(names).items():
        if count > 1 and name not in repeatable:
            raise BadRequestProblem(f"query parameter {name[:80]!r} is given {count} times")
