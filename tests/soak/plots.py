"""Plots of a soak as SVG, small enough to be committed.

    uv run --only-group soak python tests/run.py soak.plots [--to docs/images/soak]

matplotlib is in the dependency group `soak`, which only `make soak` installs, into `.tools/soak`;
so nothing of fleetbus is imported here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

from soak.samples import read_samples
from soak.slopes import Sample

# By name, because pyright runs where matplotlib is not installed.
mpl: Any = import_module("matplotlib")
plt: Any = import_module("matplotlib.pyplot")

_REPORT: Final = Path(__file__).parents[2] / "reports" / "soak"
_MIB: Final = 1024**2
_POINTS: Final = 40
"""Points of each line: more would be seen by nobody, and weigh more."""
_PANELS: Final = {
    "processes": (
        ("memory/*", "resident memory, MiB", _MIB),
        ("tasks/*", "asyncio tasks", 1),
        ("descriptors/*", "open descriptors", 1),
        ("threads/*", "threads", 1),
    ),
    "stores": (
        ("valkey/keys", "keys in Valkey", 1),
        ("valkey/bytes", "memory of Valkey, MiB", _MIB),
        ("nats/*/bytes", "bytes of each stream, MiB", _MIB),
        ("nats/*/messages", "messages of each stream", 1),
        ("nats/consumers", "consumers", 1),
        ("disk/*", "disk, MiB", _MIB),
    ),
}
"""Picture → panels: which series, the title, and the divisor of the values."""
_HIDDEN: Final = ("disk/logs", "disk/archive")


def plot(samples: dict[str, list[Sample]], document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all pictures; answers where they are."""
    mpl.rcParams["svg.hashsalt"] = "soak"  # the same samples make the same file
    mpl.rcParams["svg.fonttype"] = "none"  # outlines of letters would be half of the file
    mpl.rcParams["font.sans-serif"] = ["DejaVu Sans"]  # the list is repeated with each word
    mpl.rcParams["font.size"] = 7
    folder.mkdir(parents=True, exist_ok=True)
    return [_picture(name, samples, document, folder) for name in _PANELS]


def _picture(
    name: str, samples: dict[str, list[Sample]], document: dict[str, Any], folder: Path
) -> Path:
    panels = _PANELS[name]
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(9, 2.5 * rows), layout="constrained")
    colours: dict[str, Any] = {}
    for axis, (pattern, title, divisor) in zip(axes.flat, panels, strict=True):
        for series in sorted(samples):
            if fnmatchcase(series, pattern) and series not in _HIDDEN:
                label = series.split("/")[1]
                colour = colours.setdefault(label, plt.get_cmap("tab20")(len(colours) % 20))
                _line(axis, label, samples[series], divisor, colour)
        axis.axvspan(*(at / 60 for at in document["evaluated"]), color="0.93", zorder=0)
        axis.set_title(title)
        axis.set_xlabel("minutes")
        axis.set_ylim(bottom=0)
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    names = [label for label in lines if label in colours]
    figure.legend([lines[label] for label in names], names, loc="outside lower center", ncols=7)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _line(axis: Any, label: str, samples: Sequence[Sample], divisor: float, colour: Any) -> None:
    """The median of each group of samples, so that a line is drawn with few points."""
    size = -(-len(samples) // _POINTS)
    groups = [samples[first : first + size] for first in range(0, len(samples), size)]
    minutes = [median(sample.at for sample in group) / 60 for group in groups]
    values = [median(sample.value for sample in group) / divisor for group in groups]
    axis.plot(minutes, values, linewidth=0.8, label=label, color=colour)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", dest="source", type=Path, default=_REPORT)
    parser.add_argument("--to", type=Path, default=_REPORT)
    arguments = parser.parse_args(argv)
    document = json.loads((arguments.source / "figures.json").read_text())
    for path in plot(read_samples(arguments.source / "samples.jsonl"), document, arguments.to):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
