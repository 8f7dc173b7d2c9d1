"""Names of resources: group, version, plural; the identity is group and plural.

The served version is not part of it (rule W17): changing from v1beta1 to v1 deletes nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fleetbus_proto.errors import InvalidName

CORE = "core"
"""The core group in subjects, keys and messages."""

_USUAL_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")
_PART = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_GROUP_AT_MOST = 253
_PLURAL_AT_MOST = 253
_BUILT_IN = frozenset(
    {
        CORE,
        *("apps", "autoscaling", "batch", "extensions", "policy"),
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)


def is_built_in(group: str) -> bool:
    """Whether the group is reserved for built-in types, so that no CRD can be in it."""
    return group in _BUILT_IN


def is_resource_name(group: str, plural: str) -> bool:
    """Whether an API server can have a resource of this name, and our keys can contain it.

    nats-server closes the connection of a client that sends a line over 4,096 bytes.
    """
    if len(group) > _GROUP_AT_MOST or len(plural) > _PLURAL_AT_MOST:
        return False
    return _PART.fullmatch(plural) is not None and all(map(_PART.fullmatch, group.split(".")))


class Resource(NamedTuple):
    """One resource of the Kubernetes API; `str()` gives the canonical `apps/v1/deployments`.

    `group` is `core` for the core group, never empty.
    """

    group: str
    version: str
    plural: str

    def __str__(self) -> str:
        if self.group == CORE:
            return f"{self.version}/{self.plural}"
        return f"{self.group}/{self.version}/{self.plural}"

    @property
    def key(self) -> str:
        """The identity without the version: `apps/deployments`, `core/pods`."""
        return f"{self.group}/{self.plural}"

    @property
    def api_version(self) -> str:
        """The apiVersion of an object: `apps/v1`, `v1`."""
        return self.version if self.group == CORE else f"{self.group}/{self.version}"

    @property
    def api_path(self) -> str:
        """The URL path of its group and version: `/apis/apps/v1`, `/api/v1`."""
        prefix = "/api" if self.group == CORE else f"/apis/{self.group}"
        return f"{prefix}/{self.version}"


class ResourceName(NamedTuple):
    """A resource as a user wrote it; a part that was left out is None."""

    group: str | None
    version: str | None
    plural: str


def parse_resource(text: str) -> Resource:
    """Parse a full resource name: `v1/pods`, `core.v1.pods`, `v1.apps.deployments`.

    Raises:
        InvalidName: group or version is missing, or the name is malformed.
    """
    name = parse_resource_name(text)[0]
    if name.group is None or name.version is None:
        raise InvalidName(
            f"resource {text!r} needs group and version, like v1/pods or apps/v1/deployments"
        )
    return Resource(name.group, name.version, name.plural)


def parse_resource_name(text: str) -> tuple[ResourceName, ...]:
    """Parse a resource name; return all readings, the likeliest first.

    Accepted: `pods`, `v1/pods`, `core/v1/pods`, `apps.v1.deployments`, `v1.apps.deployments`,
    `networking.k8s.io/v1/ingresses`, `example.org/internal/things`, and kubectl's
    `ingresses.networking.k8s.io` and `deployments.v1.apps`. If several readings are possible,
    discovery decides.

    Raises:
        InvalidName: it is not a resource name.
    """
    parts = _split(text)
    if len(parts) == 1:
        return (ResourceName(None, None, parts[0]),)
    if canonical := _canonical(text):
        return (canonical,)
    if is_usual_version(parts[-2]):
        return _version_before_last(text, parts)
    if is_usual_version(parts[0]):
        return (ResourceName(_group(parts[1:-1]), parts[0], parts[-1]),)
    if "/" in text:
        raise InvalidName(
            f"resource {text!r} has no version before its last part, as in apps/v1/deployments"
        )
    return _by_plural_first(parts)


def _by_plural_first(parts: list[str]) -> tuple[ResourceName, ...]:
    """Read kubectl's `deployments.apps` and `deployments.v1.apps`."""
    if is_usual_version(parts[1]):
        return (ResourceName(_group(parts[2:]), parts[1], parts[0]),)
    plain = ResourceName(_group(parts[1:]), None, parts[0])
    if len(parts) == 2:  # noqa: PLR2004 -- deployments.apps
        return (plain,)
    # The version may be any word: kubectl's order, and ours.
    return (
        plain,
        ResourceName(_group(parts[2:]), parts[1], parts[0]),
        ResourceName(_group(parts[:-2]), parts[-2], parts[-1]),
    )


def _canonical(text: str) -> ResourceName | None:
    """Read `group/version/plural`, whatever the version is called; None for another form."""
    group, *names = text.split("/")
    if len(names) != 2 or any("." in name for name in names):  # noqa: PLR2004 -- version, plural
        return None
    is_version_first = is_usual_version(group) and not is_usual_version(names[0])
    return None if is_version_first else ResourceName(group, *names)


def _version_before_last(text: str, parts: list[str]) -> tuple[ResourceName, ...]:
    readings = [ResourceName(_group(parts[:-2]), parts[-2], parts[-1])]
    if "/" not in text and len(parts) == 3:  # noqa: PLR2004 -- a.v1.b: ours, or kubectl's order
        readings.append(ResourceName(_group(parts[2:]), parts[1], parts[0]))
    if len(parts) > 2 and is_usual_version(parts[0]):  # noqa: PLR2004 -- a group may begin like one
        readings.append(ResourceName(_group(parts[1:-1]), parts[0], parts[-1]))
    return tuple(readings)


def _split(text: str) -> list[str]:
    """Split at `/`, or else at `.`; a group may contain dots in both forms."""
    parts = text.replace("/", ".").split(".") if text else [""]
    for part in parts:
        if not _PART.fullmatch(part):
            raise InvalidName(
                f"{text!r} is not a resource name, like v1/pods or apps/v1/deployments"
            )
    return parts


def is_usual_version(part: str) -> bool:
    """Whether a word has the form of most versions: `v1`, `v2beta1`.

    A server may give a version any other name that is a label, like `internal`.
    """
    return _USUAL_VERSION.fullmatch(part) is not None


def _group(parts: list[str]) -> str:
    return ".".join(parts) or CORE
