"""Package the charts of a release, each image by its digest: `dist/charts`.

    python tests/run.py release.charts --helm helm --image ghcr.io/fleetbus/fleetbus@sha256:... \
        --nats sha256:... --valkey sha256:...

A chart that names an image by a tag would run something else once the tag is moved.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from release.dist import DIST
from release.versions import ROOT, version

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_OWN_IMAGE: Final = re.compile(
    r'(?<=^image:\n)(  repository: )\S+(\n(?:  (?:#|tag:).*\n)*  digest: )"[^"]*"', re.MULTILINE
)


class DigestError(ValueError):
    """An image cannot be named by a digest."""


def with_digests(values: str, image: str, stores: Mapping[str, str]) -> str:
    """The text of a chart's values with an image, and with digests of those of the stores.

    Args:
        values: the text.
        image: of fleetbus, as `repository@digest`.
        stores: the digests by repository, like `nats`; a chart need not have them.

    Raises:
        DigestError: a digest is none, or the values have no place for the image.
    """
    repository, _, digest = image.partition("@")
    for name, each in {repository: digest, **stores}.items():
        if not _DIGEST.fullmatch(each):
            raise DigestError(f"{name}: {each!r} is no digest like sha256:0123...")
    text, number = _OWN_IMAGE.subn(rf'\g<1>{repository}\g<2>"{digest}"', values)
    if number != 1:
        raise DigestError(f"the values have {number} places for the image of fleetbus")
    for name, each in stores.items():
        place = rf'(repository: {re.escape(name)}, tag: [^,]+, digest: )""'
        text = re.sub(place, rf'\g<1>"{each}"', text)
    return text


def package(folder: Path, helm: str | Path, image: str, stores: Mapping[str, str]) -> list[Path]:
    """Package every chart into a folder, which is made anew; returns the packages.

    Raises:
        DigestError: see `with_digests`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for chart in sorted(ROOT.glob("charts/*/Chart.yaml")):
        with TemporaryDirectory(prefix="fleetbus-chart-") as scratch:
            copy = Path(scratch, chart.parent.name)
            shutil.copytree(chart.parent, copy)
            values = copy / "values.yaml"
            values.write_text(with_digests(values.read_text(), image, stores))
            packing = (helm, "package", copy, "--destination", folder)
            subprocess.run(packing, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def main() -> None:
    """Package the charts of this version."""
    parser = argparse.ArgumentParser(description="Package the charts of this version.")
    parser.add_argument("--helm", default="helm", help="the program")
    parser.add_argument("--image", required=True, help="of fleetbus, as repository@digest")
    parser.add_argument("--nats", required=True, help="the digest of its image")
    parser.add_argument("--valkey", required=True, help="the digest of its image")
    words = parser.parse_args()
    stores = {"nats": words.nats, "valkey/valkey": words.valkey}
    try:
        packages = package(DIST / "charts", words.helm, words.image, stores)
    except DigestError as e:
        sys.exit(f"release.charts: {e}")
    print(f"{', '.join(path.name for path in packages)} of {version()} in {DIST / 'charts'}")


if __name__ == "__main__":
    main()
