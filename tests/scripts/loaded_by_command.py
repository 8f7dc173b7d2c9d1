"""Runs commands of the command line, each in a fork of its own, and prints what they import.

For each line of the standard input, the words of a command, one line is printed: a JSON list of
these words and of the heavy modules that are loaded when the command ends.
"""

from __future__ import annotations

import json
import os
import sys

from fleetbus_cli.main import main

_HEAVY = {
    *("aiohttp", "asyncio", "fastapi", "kubernetes_asyncio", "msgspec", "nats", "opentelemetry"),
    *("prometheus_client", "pydantic", "pydantic_settings", "redis", "rich", "structlog", "yaml"),
    *("fleetbus_devfleet", "fleetbus_distributor", "fleetbus_emulator"),
}


def run(words: str) -> None:
    """Run one command, and print what it has loaded in place of its output."""
    report = os.dup(1)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 -- pathlib may be what it loads
        os.dup2(nothing.fileno(), 1)
    sys.argv = ["fleetbus", *words.split()]
    try:
        main()
    finally:
        loaded = sorted(_HEAVY & sys.modules.keys())
        os.write(report, f"{json.dumps([words, loaded])}\n".encode())
        os._exit(0)


if __name__ == "__main__":
    commands = sys.stdin.read().splitlines()
    for words in commands:
        if not os.fork():
            run(words)
    for _ in commands:
        os.wait()
