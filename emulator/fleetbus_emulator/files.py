"""The files that a process of emulated clusters writes into its folder."""

from __future__ import annotations

from pathlib import Path


def kubeconfig_file(folder: Path) -> Path:
    """The kubeconfig with one context per cluster; it appears when all of them serve."""
    return folder / "kubeconfig"


def admin_port_file(folder: Path) -> Path:
    """The port of the admin endpoint."""
    return folder / "run" / "admin.port"


def lock_file(folder: Path) -> Path:
    """Locked by the process that owns the folder, for as long as it lives."""
    return folder / "run" / "emulator.lock"


def ground_truth_folder(folder: Path) -> Path:
    """A file per cluster with every committed write, where they are recorded."""
    return folder / "truth"
