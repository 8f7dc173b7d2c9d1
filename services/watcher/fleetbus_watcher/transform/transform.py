"""Drops and redacts parts of an object before it is published (rules S1, W5).

Always the last-applied annotation, and managedFields unless a rule keeps them; the values of
Secrets and of their annotations; and what the rules of the settings name. Each resource has one
transform.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from fleetbus.kube.list_watch.listing import RawObject, read_map
from fleetbus.kube.redaction_paths import MARK, Cut, Path, cut_members, parse_path
from fleetbus.process.redact import MARK_OF_BYTES
from fleetbus_watcher.transform.rules import Rule, matches
from fleetbus_watcher.transform.secret_redaction import (
    RESOURCE_OF_TEMPLATES,
    SECRETS,
    SHOWN_ANNOTATIONS,
    without_secrets,
)

VERSION: Final = "3"
"""Version of what every transform does; a checkpoint of another one is ignored (W5)."""

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_DATA_MARK: Final = msgspec.Raw(json.dumps(MARK_OF_BYTES).encode())
"""The mark for values that clients decode as base64."""
_OF_SECRETS: Final = ((("data",), _DATA_MARK), (("stringData",), MARK))
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Transform:
    """Drops and redacts parts of the objects of one resource.

    Attributes:
        version: equal for equal transforms; with another one than that of the checkpoint
            everything is listed again (W5).
    """

    version: str
    keeps_managed_fields: bool
    hides_templates: bool
    hides_annotations: bool
    cut: Cut | None
    """For the whole object; None if no rule applies, so that nothing more is decoded."""

    def apply(self, obj: RawObject, metadata: RawObject) -> bytes:
        """Return the bytes of an object after the transform.

        Raises:
            msgspec.DecodeError: the object cannot be decoded as far as needed (W16).
            RecursionError: likewise.
            UnicodeDecodeError: likewise.
        """
        fields = dict(metadata)
        if not self.keeps_managed_fields:
            fields.pop("managedFields", None)
        if (annotations := fields.get("annotations")) is not None:
            _drop_last_applied(fields, annotations)
        if self.hides_annotations:
            _hide_annotations(fields)
        if self.hides_templates:
            obj = without_secrets(obj)
        if self.cut is not None:
            cut = {**obj, "metadata": msgspec.Raw(_encoder.encode(fields))}
            cut_members(cut, self.cut)
            body = _encoder.encode(cut)
        else:
            body = _encoder.encode({**obj, "metadata": fields})
        body.decode()  # cutting does not validate UTF-8, and consumers would fail on it
        return body


@lru_cache(maxsize=1024)
def transform_of(rules: tuple[Rule, ...], key: str) -> Transform:
    """Return the transform of a resource, given as `group/plural`, by all rules that match it."""
    chosen = [rule for rule in rules if matches(rule, key)]
    drops = {parse_path(text) for rule in chosen for text in rule.drop}
    marks = {parse_path(text): MARK for rule in chosen for text in rule.redact}
    if key == SECRETS:
        marks |= dict(_OF_SECRETS)
    keeps_managed_fields = any(rule.keep_managed_fields for rule in chosen)
    return Transform(
        version=_version(drops, marks, keeps_managed_fields=keeps_managed_fields),
        keeps_managed_fields=keeps_managed_fields,
        hides_templates=key == RESOURCE_OF_TEMPLATES,
        hides_annotations=key == SECRETS,
        cut=_cut_of(drops, marks),
    )


def _cut_of(drops: Iterable[Path], marks: dict[Path, msgspec.Raw]) -> Cut | None:
    root = Cut()
    for path in drops:
        root.at(path).is_dropped = True
    for path, mark in marks.items():
        root.at(path).mark = mark
    return root if root.named or root.patterns else None


def _version(
    drops: Iterable[Path], marks: dict[Path, msgspec.Raw], *, keeps_managed_fields: bool
) -> str:
    """Return the same version for the same rules in any order; `VERSION` without rules."""
    effect = [
        sorted(drops),
        sorted((path, bytes(mark).decode()) for path, mark in marks.items()),
        keeps_managed_fields,
    ]
    if not any(effect):
        return VERSION
    return f"{VERSION}-{blake2b(json.dumps(effect).encode(), digest_size=8).hexdigest()}"


def _drop_last_applied(metadata: RawObject, raw: msgspec.Raw) -> None:
    """Drop kubectl's copy of the whole object, secrets included (rule S1, CVE-2023-40029)."""
    data = bytes(raw)
    if data.startswith(b"{") and _LAST_APPLIED.encode() not in data and b"\\" not in data:
        return  # a name that is not there is not looked for: there may be 100,000 annotations
    annotations = read_map(raw) if data != b"null" else {}
    if annotations.pop(_LAST_APPLIED, None) is None:
        return
    if annotations:
        metadata["annotations"] = msgspec.Raw(_encoder.encode(annotations))
    else:
        del metadata["annotations"]


def _hide_annotations(metadata: RawObject) -> None:
    """Redact annotations: tools store whole Secrets in them, so only known ones are shown (S1)."""
    raw = metadata.get("annotations")
    if raw is None or bytes(raw) == b"null":
        return
    redacted = {
        name: value if name in SHOWN_ANNOTATIONS else MARK for name, value in read_map(raw).items()
    }
    metadata["annotations"] = msgspec.Raw(_encoder.encode(redacted))
