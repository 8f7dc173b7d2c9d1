"""Make a heartbeat fit into one message of the bus (rule W9).

One that is too large is not stored: the cluster would look dead, and no checkpoint would be
written. What somebody has to know is kept, long texts are shortened, and as the last resort scopes
are left out, which then count as not heard of. The heartbeat says what it lacks.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fleetbus_proto import codec
from fleetbus_proto.events import Heartbeat, ResourceStatus

_WORD_BYTES: Final = 128
_TEXT_BYTES: Final = 1024
_LISTED: Final = 20
_FRAME: Final = 256
"""For what is said about what was cut, and how msgpack tells the lengths of what is left."""
_FIELD_BYTES: Final = 13
"""Of a field named `message`, beside its text."""
_ELLIPSIS: Final = "…"


def fit(heartbeat: Heartbeat, room: int) -> Heartbeat:
    """The same heartbeat, or what of it has room in so many bytes."""
    if len(codec.encode(heartbeat)) <= room:
        return heartbeat
    cut = _Cut()
    head = msgspec.structs.replace(
        heartbeat,
        server_version=cut.shorten(heartbeat.server_version, _WORD_BYTES),
        reason=cut.shorten(heartbeat.reason, _WORD_BYTES),
        message=cut.shorten(heartbeat.message, _TEXT_BYTES),
        invalid=cut.shorten_all(heartbeat.invalid),
        resources=[],
    )
    if len(codec.encode(head)) + _FRAME > room:
        cut.watch_set = True
        head = msgspec.structs.replace(head, watch_set=None)
    left = room - len(codec.encode(head)) - _FRAME
    told = cut.fit_scopes(heartbeat.resources, left)
    return msgspec.structs.replace(
        head,
        # What is not named here must not look as if nobody watched it (P6).
        watch_set=head.watch_set if len(told) == len(heartbeat.resources) else None,
        message="; ".join(filter(None, (head.message, cut.told))),
        resources=told,
    )


class _Cut:
    """What was cut."""

    def __init__(self) -> None:
        self.watch_set = False
        self._texts = 0
        self._scopes = ""

    @property
    def told(self) -> str:
        """For people."""
        found = [
            f"truncated {self._texts} strings of this heartbeat" if self._texts else "",
            self._scopes,
            "omitted the watch set" if self.watch_set else "",
        ]
        return f"its watcher {' and '.join(filter(None, found))}"

    def shorten(self, text: str, size: int) -> str:
        """The beginning of a text."""
        body = text.encode()
        if len(body) <= size:
            return text
        self._texts += 1
        end = max(size - len(_ELLIPSIS.encode()), 0)
        return body[:end].decode(errors="ignore") + _ELLIPSIS

    def shorten_all(self, texts: list[str]) -> list[str]:
        """The first of some texts."""
        self._texts += max(len(texts) - _LISTED, 0)
        return [self.shorten(text, _TEXT_BYTES) for text in texts[:_LISTED]]

    def fit_scopes(self, scopes: list[ResourceStatus], room: int) -> list[ResourceStatus]:
        """The scopes, with as much of their messages as there is room for."""
        bare = [msgspec.structs.replace(scope, message="") for scope in scopes]
        sizes = [len(msgspec.msgpack.encode(scope)) for scope in bare]
        if sum(sizes) > room:
            return self._leave_out(bare, sizes, room)
        speaking = sum(bool(scope.message) for scope in scopes)
        each = (room - sum(sizes)) // max(speaking, 1) - _FIELD_BYTES
        if each < len(_ELLIPSIS.encode()):
            self._texts += speaking
            return bare
        return [
            msgspec.structs.replace(scope, message=self.shorten(scope.message, each))
            for scope in scopes
        ]

    def _leave_out(
        self, scopes: list[ResourceStatus], sizes: list[int], room: int
    ) -> list[ResourceStatus]:
        kept: list[ResourceStatus] = []
        for scope, size in zip(scopes, sizes, strict=True):
            if size <= room:
                kept.append(scope)
                room -= size
        self._scopes = (
            f"omitted {len(scopes) - len(kept)} of {len(scopes)} scopes of this heartbeat"
        )
        return kept
