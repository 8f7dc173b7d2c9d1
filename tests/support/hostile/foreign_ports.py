"""Strangers that get a port by chance, as other programs of a busy machine do."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Generator

_LOOPBACK = "127.0.0.1"
_IP_LOCAL_PORT_RANGE = 51
"""Option of Linux 6.3; `socket` does not name it."""


@contextlib.contextmanager
def taken_by_chance(port: int) -> Generator[list[str]]:
    """Connect from any port and listen on any port, where any can be only this one.

    Yields which of the two got it; they keep it until the block ends.
    """
    with contextlib.ExitStack() as stack:
        somewhere = stack.enter_context(socket.create_server((_LOOPBACK, 0)))
        ways: dict[str, Callable[[socket.socket], None]] = {
            "a connection": lambda client: client.connect(somewhere.getsockname()),
            "a listener": lambda client: client.listen(),  # binds any port
        }
        taken: list[str] = []
        for way, take in ways.items():
            stranger = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # it is not to be had
                _narrow(stranger, port)
                take(stranger)
                taken.append(way)
        yield taken


def _narrow(stranger: socket.socket, port: int) -> None:
    """Leave the kernel one port to choose from; an older one has to get it."""
    both_ends = struct.pack("=I", port << 16 | port)
    try:
        stranger.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, both_ends)
    except OSError:
        stranger.bind((_LOOPBACK, port))
