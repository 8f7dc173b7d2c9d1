"""Normalizes rendered objects for the apply, and refuses what no API server accepts (rule D3).

No value is converted: a boolean where a string belongs is a mistake of the author, reported with
its field, and not the string that Python prints for it. Only the fields that are read here are
checked; the server, which knows the type, checks all others.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.template import DEFAULT_NAMESPACE, Object

_SERVER_FIELDS: Final = (
    "managedFields",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "uid",
    # The owners are on the hub: the garbage collector of a target would not find them, and would
    # delete the object.
    "ownerReferences",
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_API_VERSION: Final = re.compile(r"([A-Za-z0-9.-]+/)?[A-Za-z0-9-]+")
_TEXT_NEEDED: Final = "a string is required; write numbers and booleans in quotes"
_RBAC: Final = "rbac.authorization.k8s.io/"


def finish(obj: Object, path: str) -> Object:
    """Normalize a rendered and customized object.

    Fields that only a server may set are dropped, a missing namespace becomes `default`, the
    write-only `stringData` of a Secret becomes `data`, which can be compared with the live object,
    and the rules of an aggregated ClusterRole are left to the control plane, which writes them.

    Raises:
        RenderError: kind, apiVersion or name is missing, or a field has the wrong type.
    """
    metadata: Any = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise RenderError(f"{path}.metadata: an object is required")
    tree = cast("Object", metadata)
    if not _API_VERSION.fullmatch(_require_text(obj, "apiVersion", path)):
        raise RenderError(f"{path}.apiVersion: must be VERSION or GROUP/VERSION")
    _require_text(obj, "kind", path)
    _require_text(tree, "name", f"{path}.metadata")
    _check_metadata(tree, f"{path}.metadata")
    cleaned: Object = {key: value for key, value in tree.items() if key not in _SERVER_FIELDS}
    cleaned["namespace"] = cleaned.get("namespace") or DEFAULT_NAMESPACE
    annotations = cast("Object", cleaned.get("annotations") or {})
    if _LAST_APPLIED in annotations:
        cleaned["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    result = {**obj, "metadata": cleaned}
    result.pop("status", None)
    if result["apiVersion"] == "v1" and result["kind"] == "Secret":
        return _without_string_data(result, path)
    if is_aggregated(result):
        result.pop("rules", None)
    return result


def is_aggregated(obj: Mapping[str, Any]) -> bool:
    """Whether an object is a ClusterRole whose rules the control plane writes."""
    is_role = str(obj.get("apiVersion")).startswith(_RBAC) and obj.get("kind") == "ClusterRole"
    return is_role and obj.get("aggregationRule") is not None


def _check_metadata(metadata: Object, path: str) -> None:
    for name in ("namespace", "generateName"):
        if not isinstance(metadata.get(name, ""), str | None):
            raise RenderError(f"{path}.{name}: {_TEXT_NEEDED}")
    for name in ("name", "namespace"):
        text = metadata.get(name) or ""
        if text in (".", "..") or "/" in text or "%" in text:
            raise RenderError(f"{path}.{name}: may not be '.' or '..', or contain '/' or '%'")
    for name in ("labels", "annotations"):
        _check_texts(metadata.get(name), f"{path}.{name}")
    _check_items(metadata.get("finalizers"), str, f"{path}.finalizers", "strings")
    _check_items(metadata.get("ownerReferences"), dict, f"{path}.ownerReferences", "objects")


def _check_texts(value: Any, path: str) -> None:
    """Refuse what is no map of strings; null is absent, as it is for API servers."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise RenderError(f"{path}: a map of strings is required")
    for key, text in cast("Object", value).items():
        if not isinstance(text, str | None):
            member = f".{key}" if key.replace("-", "").replace("_", "").isalnum() else f"[{key!r}]"
            raise RenderError(f"{path}{member}: {_TEXT_NEEDED}")


def _check_items(value: Any, kind: type, path: str, expected: str) -> None:
    if value is None:
        return
    items = cast("list[Any]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, kind) for item in items):
        raise RenderError(f"{path}: a list of {expected} is required")


def _require_text(tree: Object, key: str, path: str) -> str:
    text: Any = tree.get(key)
    if text is None or text == "":
        raise RenderError(f"{path}.{key}: required")
    if not isinstance(text, str):
        raise RenderError(f"{path}.{key}: {_TEXT_NEEDED}")
    return text


def _without_string_data(secret: Object, path: str) -> Object:
    """Refuse values that are no strings here: a server would quote them in its message."""
    for name in ("data", "stringData"):
        _check_texts(secret.get(name), f"{path}.{name}")
    if "stringData" not in secret:
        return secret
    texts = cast("dict[str, str | None]", secret["stringData"] or {})
    encoded = {k: base64.b64encode((v or "").encode()).decode() for k, v in texts.items()}
    others = {key: value for key, value in secret.items() if key != "stringData"}
    return {**others, "data": {**cast("Object", secret.get("data") or {}), **encoded}}
