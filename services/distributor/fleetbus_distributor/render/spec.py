"""Parses and validates the spec of a MultiClusterResource.

The schema of the CRD refuses most mistakes already; this model is the second check, for servers
whose CRD is older, and defines every default. Unknown fields are errors: a field without effect
must not look as if it had one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Self, cast

from pydantic import Field, ValidationError, model_validator

from fleetbus.kube.impersonation import SERVICE_ACCOUNT_NAME
from fleetbus_distributor.errors import SpecError
from fleetbus_distributor.health.feedback import Feedback
from fleetbus_distributor.health.rules import HealthRule
from fleetbus_distributor.render.rollout_spec import Rollout
from fleetbus_distributor.selectors import DNS_LABEL, MAX_NAMES, ClusterName, LabelSelector, Strict

CRD_NAME = "multiclusterresources.fleetbus.dev"
CLUSTER_RESOURCE = "fleetbus.dev/v1alpha1/clusters"

_MAX_PROBLEMS = 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Placement(Strict):
    """The clusters that get the objects; without names and selector only the hub."""

    clusters: list[ClusterName] = Field(default_factory=list[ClusterName], max_length=MAX_NAMES)
    cluster_selector: LabelSelector | None = None
    exclude: list[ClusterName] = Field(default_factory=list[ClusterName], max_length=MAX_NAMES)


class PatchOp(StrEnum):
    """The operations of RFC 6902."""

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"
    COPY = "copy"
    TEST = "test"


class Action(Strict):
    """One JSON Patch operation; any `value`, or a list of multi_resource_operator's."""

    op: PatchOp
    path: str = Field(pattern=r"^(/.*)?$")
    value: Any = None
    from_path: str | None = Field(default=None, alias="from", pattern=r"^(/.*)?$")
    type: str | None = Field(default=None, pattern=r"^([jJ][sS][oO][nN]([pP]atch)?)?$")
    """Always JSON Patch; accepted so that multi_resource_operator's manifests stay valid."""

    @property
    def has_value(self) -> bool:
        """Whether `value` is set; an explicit null counts."""
        return "value" in self.model_fields_set

    @model_validator(mode="after")
    def _from_fits(self) -> Self:
        if self.op in (PatchOp.MOVE, PatchOp.COPY) and self.from_path is None:
            raise ValueError(f"op {self.op} needs from")
        return self


class Target(Strict):
    """Selects templates for a customize entry; absent parts match everything."""

    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None


class ClusterCustomize(Strict):
    """Changes for one cluster, or for all clusters that a selector matches."""

    name: str | None = Field(default=None, pattern=DNS_LABEL)
    cluster_selector: LabelSelector | None = None
    target: Target | None = None
    action: list[Action] = Field(default_factory=list[Action], max_length=200)
    merge: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _names_clusters_once(self) -> Self:
        if (self.name is None) == (self.cluster_selector is None):
            raise ValueError("exactly one of name and clusterSelector is required")
        return self


class Customize(Strict):
    """The differences between clusters."""

    clusters: list[ClusterCustomize] = Field(
        default_factory=list[ClusterCustomize], max_length=MAX_NAMES
    )


class ConflictPolicy(StrEnum):
    """Treatment of an object of the same name that fleetbus does not manage."""

    ABORT = "Abort"
    ADOPT = "Adopt"
    OVERWRITE = "Overwrite"


class DeletionPolicy(StrEnum):
    """Treatment of objects that are no longer desired."""

    DELETE = "Delete"
    ORPHAN = "Orphan"


class DriftPolicy(StrEnum):
    """Treatment of changes of objects by others."""

    CORRECT = "Correct"
    REPORT = "Report"
    IGNORE = "Ignore"


class FusePolicy(Strict):
    """Limits beyond which deletions that no edit requests are held (rule D8)."""

    clusters: int = Field(default=2, ge=1)
    """Held from this many clusters on; the others are exclusive limits."""
    objects: int = Field(default=20, ge=0)
    percent: int = Field(default=30, ge=0, le=100)


class Policy(Strict):
    """Permissions and limits on target clusters."""

    conflict: ConflictPolicy = ConflictPolicy.ABORT
    deletion: DeletionPolicy = DeletionPolicy.DELETE
    drift: DriftPolicy = DriftPolicy.CORRECT
    create_namespaces: bool = False
    delete_namespaces: bool = False
    recreate: bool = False
    suspend: bool = False
    fuse: FusePolicy = FusePolicy()


class Spec(Strict):
    """The whole spec."""

    template: dict[str, Any] | None = None
    templates: list[dict[str, Any]] | None = Field(default=None, min_length=1, max_length=500)
    vars: dict[str, Any] = Field(default_factory=dict[str, Any])
    placement: Placement = Placement()
    customize: Customize = Customize()
    policy: Policy = Policy()
    rollout: Rollout | None = None
    health: list[HealthRule] = Field(default_factory=list[HealthRule], max_length=32)
    feedback: list[Feedback] = Field(default_factory=list[Feedback], max_length=16)
    service_account_name: str | None = Field(default=None, pattern=SERVICE_ACCOUNT_NAME)
    """Whose rights count on the targets, in the namespace of the MultiClusterResource."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Treat null as absent: YAML reads a key without a value as null."""
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        return {key: value for key, value in fields.items() if value is not None}

    @model_validator(mode="after")
    def _one_kind_of_template(self) -> Self:
        if (self.template is None) == (self.templates is None):
            raise ValueError("exactly one of template and templates is required")
        return self

    @property
    def template_fields(self) -> list[tuple[str, dict[str, Any]]]:
        """Each template with the path of its field, for messages."""
        if self.template is not None:
            return [("spec.template", self.template)]
        return [
            (f"spec.templates[{n}]", template) for n, template in enumerate(self.templates or [])
        ]


def read_service_account(resource: dict[str, Any]) -> str:
    """Read spec.serviceAccountName, also of a spec that is invalid elsewhere; "" if it is not set.

    Raises:
        SpecError: it is invalid; it must not be taken for one that is not set (rule D16).
    """
    spec: Any = resource.get("spec")
    fields = cast("dict[str, Any]", spec) if isinstance(spec, dict) else {}
    name: Any = fields.get("serviceAccountName")
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(SERVICE_ACCOUNT_NAME, name):
        raise SpecError(["spec.serviceAccountName: not the name of a ServiceAccount"])
    return name


def read_spec(resource: dict[str, Any]) -> Spec:
    """Read the spec of a MultiClusterResource.

    Raises:
        SpecError: with one problem per field; no problem repeats a value (rule D14).
    """
    raw: Any = resource.get("spec")
    if not isinstance(raw, dict):
        raise SpecError(["spec: an object is required"])
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(_problems(error)) from error
    bad_names = [name for name in spec.vars if not _VARIABLE.fullmatch(name)]
    if bad_names:
        named = [f"spec.vars: {name!r} is not a variable name" for name in bad_names]
        raise SpecError(named[:_MAX_PROBLEMS] + _more(len(named)))
    return spec


def spec_problems(resource: dict[str, Any]) -> list[str]:
    """List the problems of a spec, for commands that cannot import this package.

    It is an entry point: `fleetbus rehearse` asks before it captures and starts a fleet.
    """
    try:
        read_spec(resource)
    except SpecError as error:
        return error.problems
    return []


def _problems(error: ValidationError) -> list[str]:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    named = [
        f"{_path(detail['loc'])}: {_reason(detail['msg'])}" for detail in details[:_MAX_PROBLEMS]
    ]
    return named + _more(len(details))


def _more(count: int) -> list[str]:
    """The sentence about problems that are not named."""
    return [f"spec: {count - _MAX_PROBLEMS} more problems"] if count > _MAX_PROBLEMS else []


def _path(location: tuple[int | str, ...]) -> str:
    parts = "".join(f"[{piece}]" if isinstance(piece, int) else f".{piece}" for piece in location)
    return f"spec{parts}"


def _reason(message: str) -> str:
    text = message.removeprefix("Value error, ").replace(" after validation, not ", ", not ")
    return {"Field required": "required", "Extra inputs are not permitted": "unknown field"}.get(
        text, text
    )
