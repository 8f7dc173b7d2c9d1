"""An OCI registry on loopback: `docker-registry` of Debian."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def oci_registry(folder: Path, *, is_readonly: bool = False) -> Generator[str]:
    """Serve a registry that keeps its content in a folder; yields `host:port`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is missing: `apt-get install docker-registry`")
    maintenance = {"readonly": {"enabled": is_readonly}}
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder)}, "maintenance": maintenance},
        "http": {"addr": "127.0.0.1:0"},
        "log": {"formatter": "json"},
    }
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(settings))
    with subprocess.Popen(
        (program, "serve", file), stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield f"127.0.0.1:{_port(child)}"
        finally:
            child.kill()


def _port(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
            return found[1]
    raise AssertionError("the registry did not start")
