"""The version of everything that is released: its one place is the root `pyproject.toml`.

    python tests/run.py release.versions            print the version; fail if a file has another
    python tests/run.py release.versions 0.2.0      set it everywhere

All packages and charts of a release have one version, and each package asks for exactly that one of
the others, so that pip never mixes two releases.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_MANIFEST: Final = ROOT / "pyproject.toml"
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(rc[1-9]\d*)?")
_OWN: Final = re.compile(r'^(version = ")([^"]+)(")$', re.MULTILINE)
_PIN: Final = re.compile(r'("fleetbus(?:-[a-z-]+)?(?:\[[a-z,]+\])?==)([^"]+)(")')
_CHART: Final = re.compile(r"^((?:version|appVersion): )(\S+)()$", re.MULTILINE)


class Place(NamedTuple):
    """A file that has the version, and the pattern of each place in it: before, version, after."""

    path: Path
    patterns: tuple[re.Pattern[str], ...]


def places() -> Iterator[Place]:
    """Every place that has the version."""
    workspace = tomllib.loads(_MANIFEST.read_text())["tool"]["uv"]["workspace"]
    yield Place(_MANIFEST, (_OWN,))
    for pattern in workspace["members"]:
        for member in sorted(ROOT.glob(pattern)):
            yield Place(member / "pyproject.toml", (_OWN, _PIN))
    for chart in sorted(ROOT.glob("charts/*/Chart.yaml")):
        yield Place(chart, (_CHART,))


def version() -> str:
    """The version of the next release."""
    return str(tomllib.loads(_MANIFEST.read_text())["project"]["version"])


def others() -> list[str]:
    """The places with another version, each as `path: version`."""
    expected = version()
    found = (
        (place.path.relative_to(ROOT), match[2])
        for place in places()
        for pattern in place.patterns
        for match in pattern.finditer(place.path.read_text())
    )
    return [f"{path}: {other}" for path, other in found if other != expected]


def set_version(new: str) -> None:
    """Write a version to every place; the lock follows with `uv lock`.

    Raises:
        ValueError: it is none.
    """
    if not _VERSION.fullmatch(new):
        raise ValueError(f"{new!r} is no version like 0.2.0 or 0.2.0rc1")
    for place in places():
        text = place.path.read_text()
        for pattern in place.patterns:
            text = pattern.sub(rf"\g<1>{new}\g<3>", text)
        place.path.write_text(text)


def main(*words: str) -> None:
    """Set the version, or print it."""
    try:
        for new in words[:1]:
            set_version(new)
    except ValueError as e:
        sys.exit(f"release.versions: {e}")
    if different := others():
        sys.exit("\n".join([f"release.versions: not {version()}:", *different]))
    print(version())


if __name__ == "__main__":
    main(*sys.argv[1:])
