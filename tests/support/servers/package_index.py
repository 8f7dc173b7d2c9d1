"""A package index on loopback, which has what is uploaded and leads to PyPI for the rest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.processes.programs import find_uv

ROOT: Final = Path(__file__).parents[3]
_SCRIPT: Final = ROOT / "tests" / "scripts" / "package_index.py"
_TOOLS: Final = ROOT / ".tools" / "release"


@contextmanager
def package_index(folder: Path) -> Generator[str]:
    """Serve the packages of a folder; yields the address, `/simple` below it is for pip."""
    uv = find_uv()
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    environment |= {"UV_PROJECT_ENVIRONMENT": str(_TOOLS), "UV_SYSTEM_CERTS": "1"}
    sync = (uv, "sync", "-q", "--locked", "--only-group", "release")
    subprocess.run(sync, cwd=ROOT, env=environment, check=True)
    with subprocess.Popen(
        (_TOOLS / "bin" / "python", _SCRIPT, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.kill()
