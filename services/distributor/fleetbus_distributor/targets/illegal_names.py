"""Finds names in the metadata of an object that no API server accepts (rule D9).

A server says so itself, but only after the namespace exists: an object in a namespace with an
illegal name would wait for it for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.json_fields import mapping
from fleetbus_distributor.render.template import Object
from fleetbus_proto.resources import CORE

_LONGEST_LABEL: Final = 63
_LONGEST_SUBDOMAIN: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_BAD_LABEL: Final = (
    "must be at most 63 lower case letters, digits or '-', and begin and end with a letter or digit"
)
_BAD_SUBDOMAIN: Final = (
    "must be at most 253 lower case letters, digits, '-' or '.', and begin and end with a letter or"
    " digit, as must each part between dots"
)
_BAD_PART: Final = (
    "must be at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
)
_BAD_KEY: Final = f"the part of a key after '/' {_BAD_PART}"
_BAD_PREFIX: Final = f"the part of a key before its one '/' {_BAD_SUBDOMAIN}"

_LABELLED: Final = frozenset({"namespaces", "services"})
_SUBDOMAINED: Final = frozenset(
    {
        *("apps", "autoscaling", "batch", "policy", "admissionregistration.k8s.io"),
        *("coordination.k8s.io", "discovery.k8s.io", "node.k8s.io", "scheduling.k8s.io"),
        *("storage.k8s.io", "apiextensions.k8s.io"),
    }
)
"""Groups whose names are DNS subdomains. In others a name may be an address, like that of an
IPAddress, or any segment of a path, like that of a Role: the server alone knows."""
_UNKNOWN: Final = frozenset({"events", "componentstatuses"})


def illegal_name(obj: Object, api: ApiResource) -> str:
    """The first problem with its field, in the order of a server; empty if there is none."""
    return next(_problems(obj["metadata"], api), "")


def _problems(metadata: dict[str, Any], api: ApiResource) -> Iterator[str]:
    if problem := _problem_of_name(api):
        if (prefix := metadata.get("generateName")) and (why := problem(_masked(prefix))):
            yield _said("generateName", prefix, why)
        if why := problem(metadata["name"]):
            yield _said("name", metadata["name"], why)
    if api.namespaced and (why := _label_problem(metadata["namespace"])):
        yield _said("namespace", metadata["namespace"], why)
    for key, value in mapping(metadata, "labels").items():
        if why := _key_problem(key):
            yield _said("labels", key, why)
        if value and (why := _part_problem(value)):
            yield _said("labels", value, why)
    for key in mapping(metadata, "annotations"):
        if why := _key_problem(key.lower()):
            yield _said("annotations", key, why)


def _said(field: str, value: str, why: str) -> str:
    return f"metadata.{field}: Invalid value: {json.dumps(value, ensure_ascii=False)}: {why}"


def _problem_of_name(api: ApiResource) -> Callable[[str], str] | None:
    """The check of names of a type; None where only the server knows."""
    resource = api.resource
    if resource.group != CORE:
        return _subdomain_problem if resource.group in _SUBDOMAINED else None
    if resource.plural in _LABELLED:
        return _label_problem
    return None if resource.plural in _UNKNOWN else _subdomain_problem


def _masked(prefix: str) -> str:
    """A name made from a prefix, which may end in what a name may not."""
    return f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix


def _label_problem(text: str) -> str:
    is_legal = len(text) <= _LONGEST_LABEL and _LABEL.fullmatch(text)
    return "" if is_legal else _BAD_LABEL


def _subdomain_problem(text: str) -> str:
    is_legal = len(text) <= _LONGEST_SUBDOMAIN and all(map(_LABEL.fullmatch, text.split(".")))
    return "" if is_legal else _BAD_SUBDOMAIN


def _part_problem(text: str) -> str:
    is_legal = len(text) <= _LONGEST_LABEL and _PART.fullmatch(text)
    return "" if is_legal else _BAD_PART


def _key_problem(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and _subdomain_problem(prefix):
        return _BAD_PREFIX
    return _BAD_KEY if _part_problem(name) else ""
