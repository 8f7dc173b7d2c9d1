"""The kubectl binaries of this machine."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

# Where the Google Cloud SDK keeps one kubectl per minor version.
CLOUD_SDK = Path("/usr/lib/google-cloud-sdk/bin")
GIVEN, ALL = "FLEETBUS_KUBECTLS", "all"
_VERSION = re.compile(r'"gitVersion": "v(\d+)\.(\d+)')


@functools.cache
def kubectls() -> dict[str, Path]:
    """The binaries by minor version, such as 1.33, oldest first.

    FLEETBUS_KUBECTLS names them, separated by colons; without it, or if it is `all`, they are
    looked for where the Google Cloud SDK keeps them, and on PATH.
    """
    listed = os.environ.get(GIVEN, ALL)
    if listed != ALL:
        by_version = {minor_version(Path(name)): Path(name) for name in listed.split(os.pathsep)}
    else:
        by_version = {
            path.name.removeprefix("kubectl."): path for path in CLOUD_SDK.glob("kubectl.1.*")
        }
        on_path = shutil.which("kubectl")
        # The SDK's own `kubectl` only chooses among the others.
        if on_path and CLOUD_SDK not in Path(on_path).resolve().parents:
            by_version[minor_version(Path(on_path))] = Path(on_path)
    return dict(sorted(by_version.items(), key=lambda entry: _order(entry[0])))


def chosen() -> list[str]:
    """The minor versions to test with: the newest, or with FLEETBUS_KUBECTLS each of them."""
    versions = list(kubectls())
    return versions if GIVEN in os.environ else versions[-1:]


def minor_version(binary: Path) -> str:
    """Return the minor version that a binary reports, like `1.31`."""
    command = [str(binary), "version", "--client", "-o", "json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    match = _VERSION.search(output)
    assert match, f"{binary} does not tell its version: {output}"
    return f"{match[1]}.{match[2]}"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))
