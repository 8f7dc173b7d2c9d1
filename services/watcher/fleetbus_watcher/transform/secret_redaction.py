"""Which Secrets are read, what is published of them, and Secrets inside other objects (rule S1).

The latter are the templates of a MultiClusterResource. The distributor reads those from the hub,
never from the bus, so only readers of the snapshot miss what is left out here.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from fleetbus.kube.list_watch.listing import RawObject, WatchTarget, read_map
from fleetbus.ownership import ADMIRALTY_OWNER_ANNOTATION, OWNER_ANNOTATION, PROTECT_ANNOTATION

RESOURCE_OF_TEMPLATES: Final = "fleetbus.dev/multiclusterresources"
"""The group and plural of what carries other objects, in any version."""

SECRETS: Final = "core/secrets"

_NO_RELEASES: Final = "type!=helm.sh/release.v1"
"""Helm stores whole charts with their values in Secrets; the API server leaves them out."""

SHOWN_ANNOTATIONS: Final = frozenset(
    {
        "argocd.argoproj.io/tracking-id",
        "cert-manager.io/certificate-name",
        "cert-manager.io/issuer-group",
        "cert-manager.io/issuer-kind",
        "cert-manager.io/issuer-name",
        "fleetbus.dev/applied",
        "fleetbus.dev/child",
        "kubernetes.io/service-account.name",
        "kubernetes.io/service-account.uid",
        "meta.helm.sh/release-name",
        "meta.helm.sh/release-namespace",
        OWNER_ANNOTATION,
        PROTECT_ANNOTATION,
        ADMIRALTY_OWNER_ANNOTATION,
    }
)
"""The annotations of a Secret whose values are published: each says who owns the Secret.

Of all others only the names are: kubectl, kapp, banzai, objectset and other tools store copies of
the whole Secret in annotations, and there is no complete list of them.
"""

_HOLDERS: Final = ("template", "templates", "customize", "vars")
"""The fields of the spec that may contain values of a Secret."""
_SECRET: Final = "Secret"  # noqa: S105 a kind, not a password
_VARIABLE: Final = "${"
_IN_TEXT: Final = re.compile(r"\bkind\W{1,8}Secret\b")
"""JSON or YAML inside a string, as tools store it in annotations."""
_SETS_KIND: Final = re.compile(r"\s*kind\s*=")
"""multi_resource_operator's form of a patch's value: a list of `name=value`."""

_decoder = msgspec.json.Decoder(Any)
_encoder = msgspec.json.Encoder()


def without_releases(field_selector: str) -> str:
    """Return a field selector of Secrets that leaves out Helm releases."""
    return f"{field_selector},{_NO_RELEASES}" if field_selector else _NO_RELEASES


def is_narrowed(target: WatchTarget) -> bool:
    """Whether an object may leave the selection undeleted; the type of a Secret never changes."""
    return bool(target.label_selector) or target.field_selector not in ("", _NO_RELEASES)


def without_secrets(resource: RawObject) -> RawObject:
    """Return a MultiClusterResource without templates if one is a Secret, or may become one.

    Raises:
        msgspec.DecodeError: it cannot be decoded.
        RecursionError: likewise.
        UnicodeDecodeError: likewise.
    """
    if "spec" not in resource or bytes(resource["spec"]) == b"null":
        return resource
    spec = read_map(resource["spec"])
    if not any(_may_be_secret(_decoder.decode(spec[name])) for name in _HOLDERS if name in spec):
        return resource
    fields = {name: raw for name, raw in spec.items() if name not in _HOLDERS}
    return {**resource, "spec": msgspec.Raw(_encoder.encode(fields))}


def _may_be_secret(tree: Any) -> bool:
    """Whether the word Secret is anywhere in it, or a kind that is decided by rendering.

    This also withholds what merely refers to a Secret; a more exact rule could miss one.
    """
    if isinstance(tree, dict):
        fields = cast("dict[str, Any]", tree)
        return any(_decides(*field) or _may_be_secret(field[1]) for field in fields.items())
    if isinstance(tree, list):
        return any(_may_be_secret(each) for each in cast("list[Any]", tree))
    if not isinstance(tree, str):
        return False
    return tree == _SECRET or bool(_SETS_KIND.match(tree) or _IN_TEXT.search(tree))


def _decides(name: str, value: Any) -> bool:
    if _VARIABLE in name:  # the names of members are rendered too
        return True
    if not isinstance(value, str):
        return False
    if name == "kind":
        return _VARIABLE in value
    # A JSON Patch of the kind, or of a whole object, has the new one in `value`.
    return name in ("path", "from") and (not value or value.endswith("/kind"))
