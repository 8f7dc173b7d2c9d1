"""Names, labels, finalizers, owner references: what Kubernetes accepts in metadata."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_devfleet.apiserver.errors import Cause, invalid_option
from fleetbus_devfleet.apiserver.tree import listing, mapping

if TYPE_CHECKING:
    from random import Random

    from fleetbus_devfleet.apiserver.resource import ResourceType

SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5
LONGEST_GENERATED = 63
LONGEST_SUBDOMAIN = 253
LONGEST_LABEL = 63
LONGEST_MANAGER = 128

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_RE = re.compile(_LABEL)
_SUBDOMAIN_RE = re.compile(_SUBDOMAIN)
_SERVICE_RE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KEY_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY_NAME_RE = re.compile(_KEY_NAME)
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_VALUE_RE = re.compile(_VALUE)

_BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL}')"
)
_BAD_SERVICE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
    "'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_BAD_KEY_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_KEY_NAME}')"
)
_BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '{_VALUE}')"
)


def generate_name(prefix: str, random: Random) -> str:
    """A name from generateName: the prefix, cut if need be, and five safe characters."""
    suffix = "".join(random.choice(SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))
    return prefix[: LONGEST_GENERATED - SUFFIX_LENGTH] + suffix


def name_problem(rtype: ResourceType, name: str) -> str | None:
    """Why the name is not acceptable for the type, or None."""
    if rtype.group == "rbac.authorization.k8s.io":
        return "may not contain '/' or '%'" if re.search(r"[/%]", name) else None
    if rtype.plural == "namespaces" and not rtype.custom:
        return _mismatch(name, _LABEL_RE, _BAD_LABEL, LONGEST_LABEL)
    if rtype.plural == "services" and not rtype.custom:
        return _mismatch(name, _SERVICE_RE, _BAD_SERVICE, LONGEST_LABEL)
    return _mismatch(name, _SUBDOMAIN_RE, _BAD_SUBDOMAIN, LONGEST_SUBDOMAIN)


def _mismatch(text: str, pattern: re.Pattern[str], message: str, longest: int) -> str | None:
    if len(text) > longest:
        return f"must be no more than {longest} characters"
    return None if pattern.fullmatch(text) else message


def _bad_value(field: str, value: str, why: str) -> Cause:
    return Cause(field, f'Invalid value: "{value}": {why}')


def metadata_problems(rtype: ResourceType, meta: dict[str, Any]) -> list[Cause]:
    """Everything that is wrong with an object's metadata."""
    causes: list[Cause] = []
    name = meta.get("name") or ""
    if not name:
        required = "Required value: name or generateName is required"
        causes.append(Cause("metadata.name", required, "FieldValueRequired"))
    elif why := name_problem(rtype, name):
        causes.append(_bad_value("metadata.name", name, why))
    for key, value in (mapping(meta, "labels")).items():
        causes += _label_problems("metadata.labels", key, value)
    for key in mapping(meta, "annotations"):
        if why := _key_problem(key.lower()):
            causes.append(_bad_value("metadata.annotations", key, why))
    for finalizer in listing(meta, "finalizers"):
        if why := _key_problem(finalizer):
            causes.append(_bad_value("metadata.finalizers", finalizer, why))
    return causes + _owner_problems(listing(meta, "ownerReferences"))


def _label_problems(field: str, key: str, value: str) -> list[Cause]:
    causes: list[Cause] = []
    if why := _key_problem(key):
        causes.append(_bad_value(field, key, why))
    if why := _mismatch(value, _VALUE_RE, _BAD_VALUE, LONGEST_LABEL):
        causes.append(_bad_value(field, value, why))
    return causes


def _key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and (why := _mismatch(prefix, _SUBDOMAIN_RE, _BAD_SUBDOMAIN, LONGEST_SUBDOMAIN)):
        return f"prefix part {why}"
    if why := _mismatch(name, _KEY_NAME_RE, _BAD_KEY_NAME, LONGEST_LABEL):
        return why if why is _BAD_KEY_NAME else f"name part {why}"
    return None


def _owner_problems(owners: list[dict[str, Any]]) -> list[Cause]:
    field = "metadata.ownerReferences"
    causes = [
        _bad_value(f"{field}.{name}", "", "must not be empty")
        for owner in owners
        for name in ("uid", "name", "kind", "apiVersion")
        if not owner.get(name)
    ]
    controllers = [f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller")]
    if len(controllers) > 1:
        value = orjson.dumps(owners).decode()
        found = " and ".join(controllers[:2])
        text = "Only one reference can have Controller set to true. "
        why = f'{text}Found "true" in references for {found}'
        causes.append(Cause(field, f"Invalid value: {value}: {why}"))
    return causes


def finalizer_warnings(meta: dict[str, Any]) -> list[str]:
    """Warnings for finalizers without a domain (FACTS M7)."""
    known = {"orphan", "foregroundDeletion", "kubernetes"}
    return [
        f'metadata.finalizers: "{finalizer}": prefer a domain-qualified finalizer name to avoid '
        "accidental conflicts with other finalizer writers"
        for finalizer in listing(meta, "finalizers")
        if "/" not in finalizer and finalizer not in known
    ]


def check_manager(manager: str, options: str) -> None:
    """Refuse a fieldManager that is too long or not printable (FACTS H5)."""
    if len(manager.encode()) > LONGEST_MANAGER:
        why = f"Too long: may not be more than {LONGEST_MANAGER} bytes"
        raise invalid_option(options, Cause("fieldManager", why, "FieldValueTooLong"))
    for position, character in enumerate(manager):
        if not character.isprintable():
            value = orjson.dumps(manager).decode()
            why = f"invalid character U+{ord(character):04X} (at position {position})"
            cause = Cause("fieldManager", f"Invalid value: {value}: {why}")
            raise invalid_option(options, cause)
