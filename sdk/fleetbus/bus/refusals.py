"""Ends what waits for an answer that the server refuses: it reports that apart from the request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from fleetbus.errors import BusError

_VIOLATION: Final = re.compile(r'permissions violation for \w+ to "([^"]*)"', re.IGNORECASE)


class Refused(BusError):
    """The user of NATS has no right to a subject, which waiting does not mend (rule B13)."""


class Refusals:
    """Everything that waits, by subject.

    Subjects are compared in lower case, in which nats-py hands on what the server says.

    Args:
        inboxes: the prefix of our inboxes, in which answers arrive.
    """

    def __init__(self, inboxes: str) -> None:
        self._inboxes = f"{inboxes.lower()}."
        self._inbox_refusal = ""
        """The text of the exceptions while our inboxes are refused."""
        self._waiting: dict[asyncio.Timeout, tuple[str, bool]] = {}
        self._refused: dict[asyncio.Timeout, str] = {}
        """The text of the exception of each wait that is about to end."""

    def note(self, error: str, text: str) -> None:
        """End what waits for the subject of an error of the server.

        Args:
            error: what the server says.
            text: of the exceptions.
        """
        if (violation := _VIOLATION.search(error)) is None:
            return
        refused = violation[1].lower()
        is_inbox = refused.startswith(self._inboxes)
        if is_inbox:
            self._inbox_refusal = text
        for limit, (subject, is_answered) in list(self._waiting.items()):
            if subject == refused or (is_answered and is_inbox):
                del self._waiting[limit]
                self._refused[limit] = text
                limit.reschedule(0)

    def reset(self) -> None:
        """Forget what was refused: the connection is another, perhaps with other rights."""
        self._inbox_refusal = ""

    @asynccontextmanager
    async def until_refused(
        self, subject: str, *, is_answered: bool = True
    ) -> AsyncGenerator[None]:
        """Run the block, which waits for what comes of using a subject.

        Args:
            subject: published or subscribed to in the block, or just before.
            is_answered: whether it waits for an answer in an inbox.

        Raises:
            Refused: the server refuses the subject, or the inbox.
        """
        if is_answered and self._inbox_refusal:
            raise Refused(self._inbox_refusal)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting[limit] = subject.lower(), is_answered
                try:
                    yield
                finally:
                    self._waiting.pop(limit, None)
        except TimeoutError:
            if limit.expired():
                raise Refused(self._refused[limit]) from None
            raise
        finally:
            self._refused.pop(limit, None)
