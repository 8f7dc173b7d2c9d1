"""The samples of a soak, as a file has them: a line for each, `[at, series, value, life]`."""

from __future__ import annotations

import json
from pathlib import Path

from soak.slopes import Sample


def read_samples(path: Path) -> dict[str, list[Sample]]:
    """The samples of a file, by series."""
    samples: dict[str, list[Sample]] = {}
    for line in path.read_bytes().splitlines():
        at, series, value, life = json.loads(line)
        samples.setdefault(series, []).append(Sample(at, value, life))
    return samples
