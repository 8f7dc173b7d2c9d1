"""Build what a release publishes, into `dist`: `make dist`.

    dist/*.whl, dist/*.tar.gz     the Python packages, all with one version
    dist/release/sbom.cdx.json    what they depend on, as CycloneDX
    dist/release/multicluster.yaml, *.tar.gz    the plugin of kubectl, for krew
    dist/release/SHA256SUMS       of the packages

Two builds of one commit have the same content: files get the time of the commit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from release.krew import write_plugin
from release.versions import ROOT, others, version

DIST: Final = ROOT / "dist"
_GIT: Final = ("git", "-C", str(ROOT))


def build(folder: Path, uv: str) -> list[Path]:
    """Build wheels and sdists of all members; returns them.

    Args:
        folder: is made anew.
        uv: the program.
    """
    shutil.rmtree(folder, ignore_errors=True)
    moment = _read(*_GIT, "log", "-1", "--format=%ct")
    _run(uv, "build", "--all-packages", "-q", "-o", str(folder), SOURCE_DATE_EPOCH=moment)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's
    return sorted(folder.iterdir())


def write_sbom(file: Path, uv: str) -> None:
    """Write what the packages depend on, with the versions of the lock."""
    form = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    words = ("export", "-q", "--frozen", "--all-packages", "--all-extras", "--no-dev")
    _run(uv, *words, *form, "-o", str(file))


def main() -> None:
    """Build everything and check it."""
    if different := others():
        sys.exit("\n".join([f"release.dist: not {version()}:", *different]))
    if changed := _read(*_GIT, "status", "--porcelain"):
        print(f"release.dist: this is no commit, as some files differ from it:\n{changed}")
    uv = os.environ.get("UV", "uv")
    built = build(DIST, uv)
    _run(uv, "run", "-q", "--only-group", "release", "twine", "check", "--strict", *map(str, built))
    folder = DIST / "release"
    folder.mkdir()
    sbom = folder / "sbom.cdx.json"
    write_sbom(sbom, uv)
    write_plugin(folder)
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in built)
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(f"{len(built)} files of {version()} in {DIST}")


def _run(*words: str, **settings: str) -> None:
    tools = str(ROOT / ".tools" / "release")
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": tools} | settings
    environment.pop("VIRTUAL_ENV", None)
    subprocess.run(words, cwd=ROOT, env=environment, check=True)


def _read(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
