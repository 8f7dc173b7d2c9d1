"""Ports that stay reserved while no server listens on them.

The port of a server that was stopped or killed is anybody's: the kernel may give it to the next
process that asks for any port, and the server cannot come back on it. So a socket that is bound
and never listens holds it. The kernel gives such a port to nobody who does not name it, and lets
the server bind it as well, because both set SO_REUSEADDR.
"""

from __future__ import annotations

import socket
import sys

LOOPBACK = "127.0.0.1"
# Elsewhere two sockets never share an address, so the port can be chosen and not be held.
_CAN_HOLD = sys.platform == "linux"


class HeldPort:
    """One TCP port of this machine, held until it is released or this process ends.

    Args:
        host: The address to bind; of several addresses of a name, the first.
        port: The port; 0 takes a free one.

    Attributes:
        number: The port.

    Raises:
        OSError: Somebody listens on it, or the address is not ours.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        self._socket = socket.socket(family)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError as e:
            self._socket.close()
            raise OSError(e.errno, f"port {port} of {host}: {e.strerror}") from e
        self.number = int(self._socket.getsockname()[1])
        if not _CAN_HOLD:
            self._socket.close()

    def release(self) -> None:
        """Give it back; does nothing the second time."""
        self._socket.close()
