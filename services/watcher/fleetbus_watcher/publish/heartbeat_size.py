"""Truncates a heartbeat to the size of one message of the bus (rule W9).

One that is too large is not stored: the cluster would look dead, and no checkpoint would be
written. The types are omitted first; they stay as they are known. Then long strings are truncated,
and as the last resort scopes are omitted, which then count as not reported. The heartbeat says what
is missing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fleetbus_proto import codec
from fleetbus_proto.events import Heartbeat, ResourceStatus

_WORD_BYTES: Final = 128
_STRING_BYTES: Final = 1024
_LISTED: Final = 20
_FRAME: Final = 256
"""For the note about what was cut, and the msgpack framing of what is left."""
_FIELD_BYTES: Final = 13
"""Bytes of a field named `message`, besides its value."""
_ELLIPSIS: Final = "…"


def fit(heartbeat: Heartbeat, limit: int) -> Heartbeat:
    """Return the heartbeat, truncated to so many bytes if it is larger."""
    if len(codec.encode(heartbeat)) <= limit:
        return heartbeat
    heartbeat = msgspec.structs.replace(heartbeat, types=None)
    if len(codec.encode(heartbeat)) <= limit:
        return heartbeat
    cut = _Cut()
    head = msgspec.structs.replace(
        heartbeat,
        server_version=cut.truncate(heartbeat.server_version, _WORD_BYTES),
        platform=cut.truncate(heartbeat.platform, _WORD_BYTES),
        reason=cut.truncate(heartbeat.reason, _WORD_BYTES),
        message=cut.truncate(heartbeat.message, _STRING_BYTES),
        invalid=cut.truncate_all(heartbeat.invalid),
        overridden=cut.truncate_all(heartbeat.overridden),
        resources=[],
    )
    if len(codec.encode(head)) + _FRAME > limit:
        cut.watch_set = True
        head = msgspec.structs.replace(head, watch_set=None)
    left = limit - len(codec.encode(head)) - _FRAME
    resources = cut.fit_scopes(heartbeat.resources, left)
    return msgspec.structs.replace(
        head,
        # Omitted scopes must not look as if they were not watched (P6).
        watch_set=head.watch_set if len(resources) == len(heartbeat.resources) else None,
        message="; ".join(filter(None, (head.message, cut.note))),
        resources=resources,
    )


class _Cut:
    """Truncates parts of a heartbeat, and counts what was cut."""

    def __init__(self) -> None:
        self.watch_set = False
        self._strings = 0
        self._scopes = ""

    @property
    def note(self) -> str:
        """The note about what was cut, for people."""
        notes = [
            f"truncated {self._strings} strings of this heartbeat" if self._strings else "",
            self._scopes,
            "omitted the watch set" if self.watch_set else "",
        ]
        return f"its watcher {' and '.join(filter(None, notes))}"

    def truncate(self, text: str, size: int) -> str:
        """Truncate a string to so many bytes."""
        body = text.encode()
        if len(body) <= size:
            return text
        self._strings += 1
        end = max(size - len(_ELLIPSIS.encode()), 0)
        return body[:end].decode(errors="ignore") + _ELLIPSIS

    def truncate_all(self, texts: list[str]) -> list[str]:
        """Truncate a list of strings, and each of them."""
        self._strings += max(len(texts) - _LISTED, 0)
        return [self.truncate(text, _STRING_BYTES) for text in texts[:_LISTED]]

    def fit_scopes(self, scopes: list[ResourceStatus], limit: int) -> list[ResourceStatus]:
        """Return the scopes with as much of their messages as fits."""
        bare = [msgspec.structs.replace(scope, message="") for scope in scopes]
        sizes = [len(msgspec.msgpack.encode(scope)) for scope in bare]
        if sum(sizes) > limit:
            return self._omit(bare, sizes, limit)
        with_message = sum(bool(scope.message) for scope in scopes)
        each = (limit - sum(sizes)) // max(with_message, 1) - _FIELD_BYTES
        if each < len(_ELLIPSIS.encode()):
            self._strings += with_message
            return bare
        return [
            msgspec.structs.replace(scope, message=self.truncate(scope.message, each))
            for scope in scopes
        ]

    def _omit(
        self, scopes: list[ResourceStatus], sizes: list[int], limit: int
    ) -> list[ResourceStatus]:
        statuses: list[ResourceStatus] = []
        for scope, size in zip(scopes, sizes, strict=True):
            if size <= limit:
                statuses.append(scope)
                limit -= size
        self._scopes = (
            f"omitted {len(scopes) - len(statuses)} of {len(scopes)} scopes of this heartbeat"
        )
        return statuses
