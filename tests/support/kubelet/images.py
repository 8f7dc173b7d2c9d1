"""Container images: programs of this machine, and what a Dockerfile adds.

`fleetbus` is the checkout with its virtual environment, `nats` and `valkey/valkey` are the servers
of the tests. `build` reads a Dockerfile that starts from one of them.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleetbus_devfleet.processes.servers import find_nats_server

CHECKOUT: Final = Path(__file__).parents[3]
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
"""Files of this machine, in the place of a base image."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VALKEY_SERVER: Final = """#!/bin/bash
# Debian's is older than the chart's image, and does not know this setting.
if [ "$2" = --sentinel ]; then
  sed -i /^tls-auto-reload-interval/d "$1"
  exec {server} "$@"
fi
exec {server} - < <(sed /^tls-auto-reload-interval/d "$1")
"""


_STORE: Final = ("redis-server", "redis-cli")
"""Debian's: Valkey's wheel has no TLS, and no client for the probes."""


def missing_store() -> str:
    """Why this machine cannot run the store of the chart; empty if it can."""
    lacking = [name for name in _STORE if shutil.which(name) is None]
    return f"no {', '.join(lacking)}: `apt-get install redis-server`" if lacking else ""


class ImageError(Exception):
    """There is no such image, or a Dockerfile says more than is understood here."""


@dataclass(frozen=True)
class Image:
    """An image.

    Attributes:
        files: where files and folders are in the container → where they are on this machine.
        environment: what it sets.
    """

    files: dict[str, str] = field(default_factory=dict[str, str])
    environment: dict[str, str] = field(default_factory=dict[str, str])


class Images:
    """The images by name; those that were built are kept in a file, for other processes too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "images.json"

    def find(self, reference: str) -> Image:
        """The image that a container names.

        Raises:
            ImageError: there is none.
        """
        name = _without_tag(reference)
        if name == "fleetbus":
            return self._fleetbus()
        if name == "nats":
            return self._server("nats", {"nats-server": find_nats_server()}, {})
        if name == "valkey/valkey":
            return self._valkey()
        if reference in (built := self._built()):
            return Image(**built[reference])
        raise ImageError(f"no image {reference}: it was not built, and is none of the chart's")

    def build(self, reference: str, dockerfile: str, context: Path) -> Image:
        """Read a Dockerfile with FROM, COPY and ENV."""
        image = Image()
        for line in dockerfile.splitlines():
            words = shlex.split(line, comments=True)
            if words:
                image = self._step(image, words, context)
        recipe = {"files": image.files, "environment": image.environment}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._built() | {reference: recipe}))
        return image

    def _built(self) -> dict[str, Any]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def _step(self, image: Image, words: list[str], context: Path) -> Image:
        match words:
            case ["FROM", base]:
                return self.find(base)
            case ["COPY", source, target]:
                place = target + Path(source).name if target.endswith("/") else target
                return Image(
                    image.files | {place: str((context / source).resolve(strict=True))},
                    image.environment,
                )
            case ["ENV", setting] if "=" in setting:
                name, _, value = setting.partition("=")
                return Image(image.files, image.environment | {name: value})
            case _:
                raise ImageError(f"only FROM, COPY and ENV are understood, not {' '.join(words)!r}")

    def _fleetbus(self) -> Image:
        folders = (*_SYSTEM, str(CHECKOUT), sys.prefix, sys.base_prefix)
        return Image(
            {folder: folder for folder in folders}, {"PATH": f"{sys.prefix}/bin:{_SYSTEM_PATH}"}
        )

    def _valkey(self) -> Image:
        if reason := missing_store():
            raise ImageError(reason)
        server, cli = (str(shutil.which(name)) for name in _STORE)
        scripts = {"valkey-server": _VALKEY_SERVER.format(server="/server/store")}
        return self._server("valkey", {"store": server, "valkey-cli": cli}, scripts)

    def _server(
        self, name: str, programs: Mapping[str, str | Path], scripts: Mapping[str, str]
    ) -> Image:
        folder = self._folder / "images" / name
        folder.mkdir(parents=True, exist_ok=True)
        for program, text in scripts.items():
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        files = {one: one for one in _SYSTEM} | {"/programs": str(folder)}
        files |= {f"/server/{program}": str(path) for program, path in programs.items()}
        return Image(files, {"PATH": f"/server:/programs:{_SYSTEM_PATH}"})


def _without_tag(reference: str) -> str:
    name = reference.partition("@")[0]
    head, _, last = name.rpartition("/")
    return f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]
