# ruff: noqa: INP001 -- a program that the chart hands to the image
"""Asks every pod behind a name whether it is ready; the test of the release runs it."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request


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


def main() -> None:
    """Exit with the problems of all pods behind the name that is given."""
    found = socket.getaddrinfo(sys.argv[1], 8080, type=socket.SOCK_STREAM)
    addresses = sorted({str(where[0]) for *_, where in found})
    problems = {address: problem_of(address) for address in addresses}
    for address, problem in problems.items():
        print(f"{address}: {problem or 'ready'}")  # noqa: T201 -- the log of the test
    sys.exit(any(problems.values()))


main()
