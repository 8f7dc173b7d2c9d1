"""Hides values in the objects of a capture; a capture is made to be given to others.

The watcher has redacted Secrets already (rule S1); here that is done again, so that a capture
never depends on it. Beyond that a value is replaced by a digest under a key that nobody keeps:
equal values stay equal within one capture, and short ones cannot be guessed.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self, cast

import msgspec

from fleetbus.errors import ConfigError
from fleetbus.kube.redaction_paths import MARK, Cut, Path, cut_members, fits, parse_path
from fleetbus.process.redact import MARK as MARK_TEXT
from fleetbus.process.redact import MARK_OF_BYTES
from fleetbus_proto.resources import Resource

LONG_ANNOTATION: Final = 1024
"""Bytes; tools keep copies of whole objects in longer ones."""
_SECRETS: Final = "core/secrets"
_CONFIG_MAPS: Final = "core/configmaps"
_TEMPLATES: Final = "fleetbus.dev/multiclusterresources"
_HOLDERS: Final = ("template", "templates", "customize", "vars")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_OURS: Final = "fleetbus.dev/"
_ENV: Final = b'"env"'
_ANNOTATIONS: Final = b'"annotations"'
_SECRET: Final = b"Secret"
_DIGEST_BYTES: Final = 8
_SALT_BYTES: Final = 32
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class HiddenPath:
    """A path of `--redact`.

    Attributes:
        text: as it was given.
        resources: a pattern of the resource keys that it concerns.
        path: the path in the object.
    """

    text: str
    resources: str
    path: Path

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `[GROUP/PLURAL:]PATH`, like `core/configmaps:data[password]`.

        Raises:
            ConfigError: it is invalid.
        """
        head, colon, tail = text.partition(":")
        is_resource = bool(colon) and "/" in head and "[" not in head
        try:
            path = parse_path(tail if is_resource else text)
        except ValueError as e:
            raise ConfigError(f"--redact: {e}") from e
        return cls(text, head if is_resource else "*", path)


@dataclass(slots=True, kw_only=True)
class Redactor:
    """Hides values in objects.

    Args:
        env: replace the values of environment variables and of long annotations.
        values: replace them, and the data of ConfigMaps.
        paths: replace what is at and below these paths.
    """

    env: bool = True
    values: bool = False
    paths: Sequence[HiddenPath] = ()
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(_SALT_BYTES))
    _met: set[str] = field(default_factory=set[str])
    _cuts: dict[str, Cut | None] = field(default_factory=dict[str, "Cut | None"])

    def describe(self) -> list[str]:
        """Name what is hidden beside Secrets, for people."""
        names = ["values of environment variables", "annotations longer than 1 KiB"]
        hidden = names if self.env or self.values else []
        more = ["data of ConfigMaps"] if self.values else []
        return [*hidden, *more, *(path.text for path in self.paths)]

    def unmet(self) -> list[str]:
        """The paths that have hidden nothing so far: they may be misspelt."""
        return [path.text for path in self.paths if path.text not in self._met]

    def apply(self, resource: Resource, body: bytes) -> bytes:
        """Return the bytes of an object with its values hidden; the same if nothing is.

        Raises:
            msgspec.DecodeError: the object cannot be decoded.
            RecursionError: likewise.
            UnicodeDecodeError: likewise.
        """
        body = self._cut(resource.key, body)
        hides = self.env or self.values
        if resource.key != _SECRETS and not (hides and _ENV in body) and _ANNOTATIONS not in body:
            return body
        tree = _decode(body)
        is_changed = self._hide_annotations(tree, all_of_them=resource.key == _SECRETS)
        if hides and _ENV in body:
            is_changed = self._hide_env(tree) or is_changed
        return _encode(tree) if is_changed else body

    def _cut(self, key: str, body: bytes) -> bytes:
        cut = self._cut_of(key, body)
        if cut is None:
            return body
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return _encode(members) if cut_members(members, cut) else body

    def _cut_of(self, key: str, body: bytes) -> Cut | None:
        if key == _TEMPLATES and _SECRET in body:  # its templates may have Secrets among them
            return self._make_cut(key, dropped=_HOLDERS)
        if key not in self._cuts:
            self._cuts[key] = self._make_cut(key)
        return self._cuts[key]

    def _make_cut(self, key: str, dropped: Sequence[str] = ()) -> Cut | None:
        root = Cut()
        if key == _SECRETS:
            root.at(("data",)).mark = msgspec.Raw(_encode(MARK_OF_BYTES))
            root.at(("stringData",)).mark = MARK
        if key == _CONFIG_MAPS and self.values:
            root.at(("data",)).mark = self._digest_of
            root.at(("binaryData",)).mark = self._digest_of_bytes
        for hidden_path in self.paths:
            if fits(hidden_path.resources, key):
                root.at(hidden_path.path).mark = self._counted(hidden_path)
        for name in dropped:
            root.at(("spec", name)).is_dropped = True
        return root if root.named or root.patterns else None

    # --- values -----------------------------------------------------------------------------------

    def _hide_annotations(self, tree: dict[str, Any], *, all_of_them: bool) -> bool:
        """Hide long annotations, and those of a Secret; the copy of kubectl is dropped."""
        metadata = tree.get("metadata")
        raw = cast("Any", metadata).get("annotations") if isinstance(metadata, dict) else None
        if not isinstance(raw, dict):
            return False
        annotations = cast("dict[str, Any]", raw)
        is_changed = annotations.pop(_LAST_APPLIED, None) is not None
        for name, value in annotations.items():
            if name.startswith(_OURS) or not isinstance(value, str) or value == MARK_TEXT:
                continue
            if all_of_them:
                annotations[name], is_changed = MARK_TEXT, True
            elif (self.env or self.values) and len(value) > LONG_ANNOTATION:
                annotations[name], is_changed = self._digest(value.encode()), True
        return is_changed

    def _hide_env(self, tree: Any) -> bool:
        """Hide the values of all lists `env`, wherever a resource keeps its containers."""
        if isinstance(tree, list):
            return sum(map(self._hide_env, cast("list[Any]", tree))) > 0  # not `any`: all of them
        if not isinstance(tree, dict):
            return False
        is_changed = False
        for name, value in cast("dict[str, Any]", tree).items():
            if name == "env" and isinstance(value, list):
                is_changed = self._hide_values(cast("list[Any]", value)) or is_changed
            else:
                is_changed = self._hide_env(value) or is_changed
        return is_changed

    def _hide_values(self, variables: list[Any]) -> bool:
        is_changed = False
        for variable in variables:
            fields = cast("dict[str, Any]", variable) if isinstance(variable, dict) else {}
            value = fields.get("value")
            if isinstance(value, str) and value and value != MARK_TEXT:
                fields["value"], is_changed = self._digest(value.encode()), True
        return is_changed

    def _counted(self, path: HiddenPath) -> Callable[[msgspec.Raw], msgspec.Raw]:
        """A mark that is a digest, and notes that its path was there."""

        def digest(raw: msgspec.Raw) -> msgspec.Raw:
            self._met.add(path.text)
            return self._digest_of(raw)

        return digest

    def _digest_of(self, raw: msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(_encode(self._digest(bytes(raw))))

    def _digest_of_bytes(self, raw: msgspec.Raw) -> msgspec.Raw:
        """The digest in base64, for values that clients decode."""
        text = self._digest(bytes(raw)).encode()
        return msgspec.Raw(_encode(base64.b64encode(text).decode()))

    def _digest(self, value: bytes) -> str:
        digest = blake2b(value, key=self._salt, digest_size=_DIGEST_BYTES).hexdigest()
        return f"redacted-{digest}"
