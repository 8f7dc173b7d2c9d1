"""client-go's informer with its workqueue: the peer of bench.cost, built where Go is."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parents[1] / "peers" / "informer"


def find_informer() -> Path | None:
    """The program, built once per source into the user's cache; None without Go or its modules."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((_SOURCE / name).read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    program = Path(root, "fleetbus", f"informer-{digest.hexdigest()[:12]}")
    if not program.exists():
        if shutil.which("go") is None:
            return None
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-mod=readonly", "-o", str(program), "."]
        if subprocess.run(command, cwd=_SOURCE, check=False, capture_output=True).returncode:
            return None
    return program
