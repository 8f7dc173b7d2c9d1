# ruff: noqa: INP001 -- a program that the chart hands to the image
"""Asks every pod behind a name whether it is ready; the test of the release runs it."""

from __future__ import annotations

import socket
import sys
import time
import urllib.error
import urllib.request

PATIENCE = 60.0
PAUSE = 2.0
"""In seconds."""


def problem_of(address: str) -> str:
    """Return why the pod at an address is not ready, or an empty string."""
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:8080/readyz", timeout=10):
            return ""
    except urllib.error.HTTPError as e:
        return e.read(4096).decode(errors="replace").strip()
    except OSError as e:
        return str(e)


def problems_behind(name: str) -> dict[str, str]:
    """The problem of each pod behind a name; empty of those that are ready."""
    found = socket.getaddrinfo(name, 8080, type=socket.SOCK_STREAM)
    return {
        address: problem_of(address) for address in sorted({str(where[0]) for *_, where in found})
    }


def main() -> None:
    """Exit with the problems of all pods behind the name that is given.

    After an upgrade old pods stay behind it for some seconds after they have ended.
    """
    end = time.monotonic() + PATIENCE
    while any((problems := problems_behind(sys.argv[1])).values()) and time.monotonic() < end:
        time.sleep(PAUSE)
    for address, problem in problems.items():
        print(f"{address}: {problem or 'ready'}")  # noqa: T201 -- the log of the test
    sys.exit(any(problems.values()))


main()
