"""The file system that a container sees: its image, its volumes, and nothing else of this machine.

It is built by the process itself in a mount namespace of its own, and goes with it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.kubelet.images import Image, ImageError, Images

_ETC = {
    "passwd": "root:x:0:0::/:/bin/sh\nfleetbus:x:10001:10001::/:/bin/sh\n",
    "group": "root:x:0:\nfleetbus:x:10001:\n",
    "nsswitch.conf": "hosts: files\n",
    "host.conf": "multi on\n",
}
_UNSHARE = shutil.which("unshare") or "unshare"
_NSENTER = shutil.which("nsenter") or "nsenter"
_NAMESPACES = ("--mount", "--net", "--uts")
_FOLDERS = ("/etc", "/tmp", "/run", "/var")  # noqa: S108 -- of the container
_FROM_HERE = ("/etc/ssl", "/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine at a place in the container."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True)
class Root:
    """The root of one container.

    Attributes:
        folder: an empty one, where the container's own namespace mounts it.
        hosts: the file that stands for DNS; who changes it writes into the same file.
        is_read_only: whether the image may not be written to.
    """

    folder: Path
    images: Images
    image: str
    volumes: Sequence[Mount]
    hosts: Path
    is_read_only: bool

    def run(self, command: Sequence[str]) -> list[str]:
        """The command of a process that builds the root, and becomes the program in it."""
        become = f'exec chroot {self._quoted("/")} "$@"'
        script = "\n".join(["set -eu", *self._build(), "unset PWD", become])
        return [_UNSHARE, "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command]

    def run_beside(self, pid: int) -> list[str]:
        """The beginning of the command of another process in it, like a probe."""
        return [_NSENTER, "--target", str(pid), *_NAMESPACES, "--root", "--wd", "--"]

    def _build(self) -> list[str]:
        image = self.images.find(self.image)
        lines = [f"mount -t tmpfs -o mode=755 root {self._quoted('/')}"]
        lines += [f"mkdir -p {self._quoted(place)}" for place in _FOLDERS]
        lines += [
            f"printf %s {shlex.quote(t)} > {self._quoted(f'/etc/{n}')}" for n, t in _ETC.items()
        ]
        # Not read-only: a device is written to, and so is what a process knows of itself.
        lines += [
            f"mkdir {self._quoted(p)} && mount --rbind {p} {self._quoted(p)}"
            for p in ("/dev", "/proc")
        ]
        lines += [
            line
            # In this order, so that no mount hides one below it.
            for mount in sorted((*self._of_image(image), *self.volumes), key=lambda m: m.target)
            for line in self._mount(mount, image)
        ]
        if self.is_read_only:
            lines.append(f"mount -o remount,bind,ro {self._quoted('/')}")
        return lines

    def _of_image(self, image: Image) -> list[Mount]:
        files = {place: Path(place) for place in _FROM_HERE}
        files |= {place: Path(source) for place, source in image.files.items()}
        mounts = [Mount(source, place, True) for place, source in sorted(files.items())]
        return [
            *[mount for mount in mounts if mount.source.exists()],
            Mount(self.hosts, "/etc/hosts", True),
        ]

    def _mount(self, mount: Mount, image: Image) -> list[str]:
        self._check(mount, image)
        target = self._quoted(mount.target)
        parent = self._quoted(str(Path(mount.target).parent))
        empty = f"mkdir -p {target}" if mount.source.is_dir() else f"touch {target}"
        lines = [f"mkdir -p {parent} && {empty}"]
        lines.append(f"mount --rbind {shlex.quote(str(mount.source))} {target}")
        if mount.read_only:
            lines.append(f"mount -o remount,bind,ro {target}")
        return lines

    def _check(self, mount: Mount, image: Image) -> None:
        """A mount point inside of another mount is made in what is mounted there.

        That may be a volume of the pod, but no file of this machine that its image consists of.
        """
        fixed = {place: Path(mount.target).exists() for place in image.files}
        fixed |= {volume.target: not volume.read_only for volume in self.volumes}
        for other, has_place in fixed.items():
            inside = mount.target != other and Path(mount.target).is_relative_to(other)
            if inside and not has_place:
                raise ImageError(f"{mount.target}: there is already a mount at {other}")

    def _quoted(self, place: str) -> str:
        return shlex.quote(str(self.folder / place.lstrip("/")))
