"""Reports what a container sees, as JSON lines, until SIGTERM; `tests/charts/test_kubelet.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


def show(report: dict[str, Any]) -> None:
    """Write a line."""
    print(json.dumps(report), flush=True)


def files(folder: str) -> dict[str, str]:
    """The files below a folder, by path."""
    found = [
        Path(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if "/.." not in place
    ]
    return {str(path): path.read_text() for path in found}


def can_write() -> bool:
    """Whether the root may be written to."""
    try:
        Path("/written").touch()
    except OSError:
        return False
    return True


def end(*_: object) -> None:
    """Take a moment, as a process that cleans up."""
    show({"ended": True})
    time.sleep(0.3)  # it cleans up
    show({"done": True})
    sys.exit()


signal.signal(signal.SIGTERM, end)
show(
    {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "init": Path("/shared/init").read_text(),
        "files": files("/etc/app") | files("/var/run/secrets"),
        "root": sorted(path.name for path in Path("/").iterdir()),
        "written": can_write(),
    }
)
server = socket.create_server((os.environ["ADDRESS"], 8080))
last = ""
while True:
    time.sleep(0.05)  # between two looks
    text = Path("/etc/app/secret/key").read_text()
    if text != last:
        show({"secret": text})
    last = text
