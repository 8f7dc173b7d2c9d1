"""Which Secrets are read, what of them is shown, and Secrets inside other objects (rule S1).

The latter are the templates of a MultiClusterResource.

The distributor reads a MultiClusterResource from the hub, never from the bus, so what is left out
here costs a reader of the fleet the templates and nothing else.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from fleetbus.kube.listing import RawObject, WatchTarget, read_map
from fleetbus.ownership import OWNER_ANNOTATION, PROTECT_ANNOTATION, SEED_OWNER_ANNOTATION

RESOURCE_OF_TEMPLATES: Final = "fleetbus.dev/multiclusterresources"
"""The group and plural of what carries other objects, in any version."""

SECRETS: Final = "core/secrets"

_NO_RELEASES: Final = "type!=helm.sh/release.v1"
"""Helm keeps whole charts with their values in Secrets; the API server leaves them out."""

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
        SEED_OWNER_ANNOTATION,
    }
)
"""The annotations of a Secret whose values are published: each says whose the Secret is.

Of all others only the names are: kubectl, kapp, banzai, objectset and others keep copies of the
whole Secret in theirs, and nobody knows all who do.
"""

_HOLDERS: Final = ("template", "templates", "customize", "vars")
"""The fields of the spec where values of a Secret can stand."""
_SECRET: Final = "Secret"  # noqa: S105 a kind, not a password
_VARIABLE: Final = "${"
_IN_TEXT: Final = re.compile(r"\bkind\W{1,8}Secret\b")
"""JSON or YAML inside a string, as tools keep it in annotations."""
_SETS_KIND: Final = re.compile(r"\s*kind\s*=")
"""multi_resource_operator's form of a patch's value: a list of `name=value`."""

_decoder = msgspec.json.Decoder(Any)
_encoder = msgspec.json.Encoder()


def without_releases(field_selector: str) -> str:
    """A selector of Secrets that never chooses what Helm keeps of its releases."""
    return f"{field_selector},{_NO_RELEASES}" if field_selector else _NO_RELEASES


def is_narrowed(target: WatchTarget) -> bool:
    """Whether an object may leave the selection and live on; the type of a Secret never changes."""
    return bool(target.label_selector) or target.field_selector not in ("", _NO_RELEASES)


def without_secrets(found: RawObject) -> RawObject:
    """A MultiClusterResource; if a template is a Secret, or may become one, without all templates.

    Raises:
        msgspec.DecodeError: it cannot be read, so nothing is sure.
        RecursionError: likewise.
        UnicodeDecodeError: likewise.
    """
    if "spec" not in found or bytes(found["spec"]) == b"null":
        return found
    spec = read_map(found["spec"])
    if not any(_may_be_secret(_decoder.decode(spec[name])) for name in _HOLDERS if name in spec):
        return found
    kept = {name: raw for name, raw in spec.items() if name not in _HOLDERS}
    return {**found, "spec": msgspec.Raw(_encoder.encode(kept))}


def _may_be_secret(tree: Any) -> bool:
    """Whether the word is anywhere in it, or a kind that only rendering decides.

    This also withholds what merely refers to a Secret; a rule that knew more could miss one.
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
    # A JSON Patch of the kind, or of a whole object, says in `value` what it becomes.
    return name in ("path", "from") and (not value or value.endswith("/kind"))
