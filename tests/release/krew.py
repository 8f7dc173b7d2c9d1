"""The plugin of kubectl for krew: an archive, and the manifest that names it by its digest.

No archive holds a Python program with compiled dependencies for all systems. So this one has a
script that finds the installed plugin, or lets uv or pipx fetch this version.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml

from release.versions import ROOT, version

_HOME: Final = "https://github.com/fleetbus/fleetbus"
_NAME: Final = "kubectl-multicluster"
_SCRIPT: Final = r"""#!/bin/sh
# kubectl multicluster: runs the plugin of an installed fleetbus, or fetches it with uv or pipx.
set -eu
wanted="fleetbus==VERSION"
if fleetbus=$(command -v fleetbus); then
  installed=$(dirname "$(readlink -f "$fleetbus")")/kubectl-multicluster
  [ ! -x "$installed" ] || exec "$installed" "$@"
fi
if command -v uv >/dev/null; then
  exec uv tool run --quiet --from "$wanted" kubectl-multicluster "$@"
fi
if command -v pipx >/dev/null; then
  exec pipx run --quiet --spec "$wanted" kubectl-multicluster "$@"
fi
echo "kubectl-multicluster: fleetbus is missing: pip install $wanted, or install uv or pipx" >&2
exit 1
"""


def write_plugin(folder: Path) -> tuple[Path, Path]:
    """Write the archive and the manifest into a folder; returns both."""
    archive = folder / f"{_NAME}-{version()}.tar.gz"
    archive.write_bytes(_archive())
    manifest = folder / "multicluster.yaml"
    address = f"{_HOME}/releases/download/v{version()}/{archive.name}"
    document = _manifest(address, hashlib.sha256(archive.read_bytes()).hexdigest())
    manifest.write_text(yaml.safe_dump(document, sort_keys=False))
    return archive, manifest


def _archive() -> bytes:
    """The same bytes for the same version."""
    script = _SCRIPT.replace("VERSION", version()).encode()
    licence = (ROOT / "LICENSE").read_bytes()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content, mode in ((_NAME, script, 0o755), ("LICENSE", licence, 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def _manifest(address: str, digest: str) -> dict[str, Any]:
    """The manifest of krew: `kubectl krew install multicluster` reads it from an index."""
    systems = {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "multicluster"},
        "spec": {
            "version": f"v{version()}",
            "homepage": _HOME,
            "shortDescription": "List objects of many clusters in one table",
            "description": (
                "Lists and describes objects of all clusters of a fleetbus, joins and unjoins"
                " clusters, and applies MultiClusterResources. It needs Python 3.11 with the"
                " package fleetbus, or uv or pipx, which fetch it.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchExpressions": [systems]},
                    "uri": address,
                    "sha256": digest,
                    "bin": _NAME,
                    "files": [{"from": _NAME, "to": "."}, {"from": "LICENSE", "to": "."}],
                }
            ],
        },
    }
