"""Reads the names of Kubernetes' own types from the sources of its API server.

Discovery says what the registry of each resource says: `DefaultQualifiedResource`,
`SingularQualifiedResource`, `ShortNames()` and `Categories()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

Names = dict[str, dict[str, list[str] | str]]

_PLURAL: Final = re.compile(
    r'(?:DefaultQualifiedResource:\s+|var groupResource = )\w+\.Resource\("(\w+)"\)'
)
_SINGULAR: Final = re.compile(r'SingularQualifiedResource:\s+\w+\.Resource\("(\w+)"\)')
_LISTS: Final = {
    "shortNames": re.compile(r"ShortNames\(\) \[\]string \{\s*return \[\]string\{([^}]*)\}"),
    "categories": re.compile(r"Categories\(\) \[\]string \{\s*return \[\]string\{([^}]*)\}"),
}
_GROUP: Final = re.compile(r'GroupName = "([^"]*)"')
_ALONE: Final = {
    # It stores nothing.
    "core/componentstatuses": {
        "singular": "componentstatus",
        "shortNames": ["cs"],
        "categories": [],
    },
}
_NOT_SERVED: Final = frozenset({"testapigroup.apimachinery.k8s.io/carps"})


def registry_names(kubernetes: Path, apiextensions: Path, aggregator: Path) -> Names:
    """The names by resource key, from the folders of three modules."""
    found: Names = dict(_ALONE)
    for folder in sorted(kubernetes.glob("pkg/registry/*")):
        definition = kubernetes / "pkg/apis" / folder.name / "register.go"
        group = _GROUP.search(definition.read_text()) if definition.is_file() else None
        if group:
            found |= _read(folder.glob("**/storage.go"), group[1] or "core")
    found |= _read(apiextensions.glob("pkg/registry/*/etcd.go"), "apiextensions.k8s.io")
    found |= _read(aggregator.glob("pkg/registry/*/etcd/etcd.go"), "apiregistration.k8s.io")
    found["events.k8s.io/events"] = found["core/events"]  # the same storage
    return {key: names for key, names in sorted(found.items()) if key not in _NOT_SERVED}


def _read(files: Iterable[Path], group: str) -> Names:
    names: Names = {}
    for file in files:
        text = file.read_text()
        plural, singular = _PLURAL.search(text), _SINGULAR.search(text)
        if plural is None or singular is None:
            continue
        lists = {name: _strings(pattern.search(text)) for name, pattern in _LISTS.items()}
        names[f"{group}/{plural[1]}"] = {"singular": singular[1], **lists}
    return names


def _strings(match: re.Match[str] | None) -> list[str]:
    return re.findall(r'"([^"]+)"', match[1]) if match else []
