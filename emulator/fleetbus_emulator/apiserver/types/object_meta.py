"""Names, labels, finalizers, owner references: what Kubernetes accepts in metadata."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.errors import Cause, invalid_option
from fleetbus_emulator.apiserver.json_tree import listing, mapping

if TYPE_CHECKING:
    from random import Random

    from fleetbus_emulator.apiserver.types.resource import ResourceType

SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5
REMEMBERED = 10_000  # strings that were checked before
LONGEST_REMEMBERED = 400  # characters; a valid key has 317
LONGEST_GENERATED = 63
LONGEST_SUBDOMAIN = 253
LONGEST_LABEL = 63
LONGEST_MANAGER = 128
RBAC = "rbac.authorization.k8s.io"
LARGEST_ANNOTATIONS = 256 * 1024

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
_QUALIFIED = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_KEY_NAME}')"
)
_OPTIONAL_PREFIX = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
_BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '{_VALUE}')"
)


def generate_name(prefix: str, random: Random) -> str:
    """A name from generateName: the prefix, cut if need be, and five safe characters."""
    suffix = "".join(random.choice(SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))
    return prefix[: LONGEST_GENERATED - SUFFIX_LENGTH] + suffix


def name_problems(rtype: ResourceType, name: str) -> list[str]:
    """Validate a name by the rules of its type."""
    if not rtype.custom and (rtype.group == RBAC or rtype.kind == "Event"):
        if name in {".", ".."}:
            return [f"may not be '{name}'"]
        return [f"may not contain '{character}'" for character in "/%" if character in name]
    if rtype.plural == "namespaces" and not rtype.custom:
        return _mismatches(name, _LABEL_RE, _BAD_LABEL, LONGEST_LABEL)
    if rtype.plural == "services" and not rtype.custom:
        return label_1035_problems(name)
    return subdomain_problems(name)


def subdomain_problems(text: str) -> list[str]:
    """Validate a DNS subdomain."""
    return _mismatches(text, _SUBDOMAIN_RE, _BAD_SUBDOMAIN, LONGEST_SUBDOMAIN)


def label_1035_problems(text: str) -> list[str]:
    """Validate a DNS label that begins with a letter."""
    return _mismatches(text, _SERVICE_RE, _BAD_SERVICE, LONGEST_LABEL)


def _mismatches(text: str, pattern: re.Pattern[str], message: str, longest: int) -> list[str]:
    problems = [f"must be no more than {longest} characters"] if len(text) > longest else []
    return problems if pattern.fullmatch(text) else [*problems, message]


def key_problems(key: str) -> list[str]:
    """Validate a key of a label, an annotation or a finalizer."""
    if len(key) > LONGEST_REMEMBERED:
        return _key_problems.__wrapped__(key)
    return _key_problems(key)


@lru_cache(maxsize=REMEMBERED)
def _key_problems(key: str) -> list[str]:
    *prefixes, name = key.split("/")
    if len(prefixes) > 1:
        return [f"a qualified name {_QUALIFIED} {_OPTIONAL_PREFIX}"]
    problems: list[str] = []
    if prefixes == [""]:
        problems.append("prefix part must be non-empty")
    elif prefixes:
        problems += [f"prefix part {why}" for why in subdomain_problems(prefixes[0])]
    if not name:
        problems.append("name part must be non-empty")
    return problems + [
        f"name part {why}" for why in _mismatches(name, _KEY_NAME_RE, _QUALIFIED, LONGEST_LABEL)
    ]


def label_value_problems(value: str) -> list[str]:
    """Validate the value of a label."""
    if len(value) > LONGEST_REMEMBERED:
        return _label_value_problems.__wrapped__(value)
    return _label_value_problems(value)


@lru_cache(maxsize=REMEMBERED)
def _label_value_problems(value: str) -> list[str]:
    return _mismatches(value, _VALUE_RE, _BAD_VALUE, LONGEST_LABEL)


def invalid_values(field: str, value: str, problems: list[str]) -> list[Cause]:
    """A cause for each problem of a string."""
    if not problems:
        return []
    text = orjson.dumps(value).decode()
    return [Cause(field, f"Invalid value: {text}: {why}") for why in problems]


def metadata_problems(rtype: ResourceType, meta: dict[str, Any]) -> list[Cause]:
    """Validate an object's metadata."""
    causes: list[Cause] = []
    if prefix := meta.get("generateName"):
        # The suffix follows: a prefix may end in what a name may not.
        masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        causes += invalid_values("metadata.generateName", prefix, name_problems(rtype, masked))
    name = meta.get("name") or ""
    if name:
        causes += invalid_values("metadata.name", name, name_problems(rtype, name))
    else:
        required = "Required value: name or generateName is required"
        causes.append(Cause("metadata.name", required, "FieldValueRequired"))
    for key, value in (mapping(meta, "labels")).items():
        causes += invalid_values("metadata.labels", key, key_problems(key))
        causes += invalid_values("metadata.labels", value, label_value_problems(value))
    causes += _annotation_problems(mapping(meta, "annotations"))
    for finalizer in listing(meta, "finalizers"):
        causes += invalid_values("metadata.finalizers", finalizer, key_problems(finalizer))
    return causes + _owner_problems(listing(meta, "ownerReferences"))


def _annotation_problems(annotations: dict[str, str]) -> list[Cause]:
    field, size = "metadata.annotations", 0
    causes: list[Cause] = []
    for key, value in annotations.items():
        causes += invalid_values(field, key, key_problems(key.lower()))
        size += len(key) + len(value)
    if size > LARGEST_ANNOTATIONS:
        why = f"Too long: may not be more than {LARGEST_ANNOTATIONS} bytes"
        causes.append(Cause(field, why, "FieldValueTooLong"))
    return causes


def _owner_problems(owners: list[dict[str, Any]]) -> list[Cause]:
    field = "metadata.ownerReferences"
    causes: list[Cause] = []
    for owner in owners:
        api_version = owner.get("apiVersion") or ""
        if not api_version.rpartition("/")[2] or api_version.count("/") > 1:
            why = ["version must not be empty"]
            causes += invalid_values(f"{field}.apiVersion", api_version, why)
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                causes += invalid_values(f"{field}.{name}", "", ["must not be empty"])
    controllers = [f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller")]
    if len(controllers) > 1:
        value = orjson.dumps(owners).decode()
        names = " and ".join(controllers[:2])
        text = "Only one reference can have Controller set to true. "
        why = f'{text}Found "true" in references for {names}'
        causes.append(Cause(field, f"Invalid value: {value}: {why}"))
    return causes


def finalizer_warnings(meta: dict[str, Any]) -> list[str]:
    """Warnings for finalizers without a domain."""
    plain = {"orphan", "foregroundDeletion", "kubernetes"}
    return [
        f'metadata.finalizers: "{finalizer}": prefer a domain-qualified finalizer name to avoid '
        "accidental conflicts with other finalizer writers"
        for finalizer in listing(meta, "finalizers")
        if "/" not in finalizer and finalizer not in plain
    ]


def check_manager(manager: str, options: str) -> None:
    """Refuse a fieldManager that is too long or not printable."""
    if len(manager.encode()) > LONGEST_MANAGER:
        why = f"Too long: may not be more than {LONGEST_MANAGER} bytes"
        raise invalid_option(options, Cause("fieldManager", why, "FieldValueTooLong"))
    for position, character in enumerate(manager):
        if not character.isprintable():
            value = orjson.dumps(manager).decode()
            why = f"invalid character U+{ord(character):04X} (at position {position})"
            cause = Cause("fieldManager", f"Invalid value: {value}: {why}")
            raise invalid_option(options, cause)


def manager_of(user_agent: str) -> str:
    """The manager that a client is which names none: its product, as far as it is acceptable."""
    printable = "".join(c for c in user_agent.partition("/")[0] if c.isprintable())
    return printable.encode()[:LONGEST_MANAGER].decode(errors="ignore")
