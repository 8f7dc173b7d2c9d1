"""A TLS context that reads the certificates of the machine for its first connection."""

from __future__ import annotations

import ssl
from typing import Any


def postpone(self: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
    """Take the place of `load_default_certs` of a client's context."""
    del purpose  # always that of a client
    self.__class__ = LateContext


class LateContext(ssl.SSLContext):
    """Trusts nobody until then."""

    has_certificates = False

    def wrap_bio(self, *args: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection."""
        if not self.has_certificates:
            self.load_default_certs()
            self.has_certificates = True
        return super().wrap_bio(*args, **named)
