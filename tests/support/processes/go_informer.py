"""Programs with client-go's informers, built where Go is at hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_MODULE: Final = Path(__file__).parents[2] / "bench" / "peers" / "informer"
_ANSWER_LIMIT: Final = 16 * 1024 * 1024


def find_go_program(name: str = ".") -> Path | None:
    """A program of the module, built once per source into the user's cache.

    Args:
        name: of its folder.

    Returns:
        None without Go or the modules that it needs.

    Raises:
        subprocess.CalledProcessError: it cannot be compiled.
    """
    digest = hashlib.sha256()
    for path in (_MODULE / name / "main.go", _MODULE / "go.mod", _MODULE / "go.sum"):
        digest.update(path.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    program = Path(root, "fleetbus", f"informer-{digest.hexdigest()[:12]}")
    if not program.exists():
        if shutil.which("go") is None:
            return None
        package = f"./{name}"
        needed = ["go", "list", "-mod=readonly", "-deps", package]
        if subprocess.run(needed, cwd=_MODULE, check=False, capture_output=True).returncode:
            return None
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-mod=readonly", "-o", str(program), package]
        subprocess.run(command, cwd=_MODULE, check=True)
    return program


@dataclass
class InformerCache:
    """A running informer of ConfigMaps."""

    child: asyncio.subprocess.Process

    async def read(self) -> dict[str, str]:
        """Its cache: the data `n` of each ConfigMap by `<namespace>/<name>`; empty until synced."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(b"\n")
        return json.loads(await self.child.stdout.readline())


@asynccontextmanager
async def informer_cache(
    program: Path, url: str, selector: str, *, lists: bool
) -> AsyncGenerator[InformerCache]:
    """An informer.

    Args:
        program: `find_go_program("cache")`.
        url: of the API server.
        selector: of labels; empty for all ConfigMaps.
        lists: whether it lists first, as it did before WatchList.
    """
    child = await asyncio.create_subprocess_exec(
        *(str(program), url, selector),
        env=os.environ | {"KUBE_FEATURE_WatchListClient": "false" if lists else "true"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_ANSWER_LIMIT,
    )
    try:
        yield InformerCache(child)
    finally:
        child.kill()
        await child.communicate()
