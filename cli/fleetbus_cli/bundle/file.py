"""The file of a bundle: a compressed tar archive whose README lists its content."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleetbus.errors import ConfigError
from fleetbus.process.redact import without_secret_words
from fleetbus_cli.whole_file import whole_file

_FOLDER: Final = "fleetbus-bundle"
_HEAD: Final = """\
What `fleetbus doctor --bundle` found in a fleet, for a bug report.

Passwords, tokens, keys, environment variables that are not settings of fleetbus, templates and
the data of Secrets are left out; log lines are searched for what looks like a credential.
In it are names of clusters, namespaces and objects, addresses and labels.
Look through it before you send it.
"""
_MESSAGE: Final = 2000


@dataclass(slots=True)
class Bundle:
    """The files of a bundle before they are written."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    abouts: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons by what could not be read."""

    def add(self, name: str, about: str, content: object) -> None:
        """Add a file: text as it is, anything else as JSON."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
        self.files[name] = text.encode("utf-8", "replace")
        self.abouts[name] = about

    def lack(self, what: str, why: Exception | str) -> None:
        """Record that something could not be read."""
        self.missing[what] = without_secret_words(str(why), limit=_MESSAGE)

    def readme(self) -> str:
        """List the files, and what is missing."""
        lines = [_HEAD]
        lines += [f"{name}: {self.abouts[name]}" for name in sorted(self.files)]
        if self.missing:
            lines += ["", "Not in it:"]
            lines += [f"{what}: {why}" for what, why in self.missing.items()]
        return "\n".join(lines) + "\n"

    def pack(self) -> bytes:
        """The archive."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in {"README.txt": self.readme().encode(), **self.files}.items():
                member = tarfile.TarInfo(f"{_FOLDER}/{name}")
                member.size, member.mode = len(content), 0o600
                tar.addfile(member, io.BytesIO(content))
        return packed.getvalue()


def check_place(path: Path) -> None:
    """Check that a bundle may be written to a path.

    Raises:
        ConfigError: it may not.
    """
    if path.exists():
        raise ConfigError(f"{path} already exists; name another file")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def write(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, for its owner's eyes only.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with whole_file(path, replaces=False) as file:
            file.write(content)
    except OSError as e:
        raise ConfigError(f"cannot write {path}: {e.strerror or e}") from e


def clean_lines(lines: Sequence[str]) -> str:
    """The lines of a log without what looks like a credential."""
    return "".join(f"{without_secret_words(line, limit=_MESSAGE)}\n" for line in lines)
