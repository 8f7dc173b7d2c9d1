"""The subjects that a NATS server refuses to a user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from support.eventually import eventually
from support.servers.plain_nats_client import plain_client
from support.servers.rendered_servers import RenderedNats

_VIOLATION = re.compile(r'permissions violation for (\w+) to "(.*)"', re.IGNORECASE)
_LAST = "last.subject.that.nobody.may.publish.to"


@dataclass
class _Refused:
    """The violations that the server reported to the client, which lowers their case."""

    found: set[str] = field(default_factory=set[str])

    async def note(self, error: Exception) -> None:
        if violation := _VIOLATION.search(str(error)):
            self.found.add(f"{violation[1]} {violation[2]}".lower())


async def refusals(
    server: RenderedNats, user: str, publish: Iterable[str], subscribe: Iterable[str] = ()
) -> set[str]:
    """Return `publish <subject>` and `subscription <subject>` for what the user may not."""
    refused = _Refused()
    async with plain_client(server.address, error_cb=refused.note, **server.login(user)) as client:
        for subject in subscribe:
            await client.subscribe(subject)
        for subject in publish:
            await client.publish(subject, b"")
        await client.publish(_LAST, b"")
        await eventually(lambda: f"publish {_LAST}" in refused.found)
    refusable = [f"publish {one}" for one in publish] + [f"subscription {one}" for one in subscribe]
    return {line for line in refusable if line.lower() in refused.found}
