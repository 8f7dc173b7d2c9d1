"""Where the archive is: a folder, or a bucket that speaks S3; `obstore` does the work of both.

A put is atomic: a reader sees the whole chunk or none. Credentials come from the environment
(`AWS_…`, a role of the pod), or from a folder of files, which is read again every minute.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from fleetbus.archive.names import ROOT, is_newer_root, read_name
from fleetbus.errors import ArchiveError, ConfigError
from fleetbus.process.release import release

if TYPE_CHECKING:
    from obstore.store import (
        ClientConfig,
        LocalStore,
        RetryConfig,
        S3Config,
        S3Credential,
        S3Store,
    )

READ_AGAIN: Final = timedelta(minutes=1)
"""Interval at which the credentials are read again, as somebody may rotate them."""
_TIMEOUT: Final = timedelta(seconds=60)
"""Timeout of one request, with its body."""
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_PARTIAL: Final = re.compile(r".+\.jsonl\.gz#\d+")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS: Final = re.compile(r"\b([345]\d\d) ([A-Z][A-Za-z ]{1,40})")
_OUR_OWN: Final = re.compile(r"credential provider: ConfigError: ([^\n]+)")
_ELAPSED: Final = re.compile(r" in [0-9.]+[mnµ]?s\b")
"""Another one each time, and so another text to log."""
_SYSTEM: Final = re.compile(r'message: "([^"\n]{1,80})"')
"""Pattern of a connection error, as the library prints it."""
_REFUSED: Final = (("PermissionDenied", "permission denied"), ("Unauthenticated", "not logged in"))
_ERROR_AT_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of an archive.

    Args:
        url: `file:///folder`, or `s3://bucket/prefix`.
        endpoint: of an S3-compatible server that is not that of AWS; `http://` allows plain HTTP.
        region: of the bucket; empty means `AWS_REGION`, or us-east-1.
        credentials: a folder with the files `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
            perhaps `AWS_SESSION_TOKEN`; None means the environment.
        ca_file: the CA certificates of the endpoint, in PEM, beside those of the machine.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    credentials: pathlib.Path | None = None
    ca_file: pathlib.Path | None = None


class ObjectGone(ArchiveError):
    """There is no such object: perhaps it was deleted since it was listed."""


class Stored(NamedTuple):
    """An object in the store."""

    path: str
    size: int
    """In bytes."""


class ArchiveStore:
    """The objects of an archive, by their paths in it; created by `open_store`.

    Args:
        store: of the library.
        folder: of a local archive.
    """

    def __init__(self, store: LocalStore | S3Store, folder: pathlib.Path | None = None) -> None:
        self._store = store
        self._folder = folder

    async def put(self, path: str, data: bytes) -> None:
        """Store an object, or replace it; once this returns it survives a crash of the machine.

        Raises:
            ArchiveError: it may not have been stored.
        """
        import obstore  # noqa: PLC0415 -- optional, and slow to load

        try:
            await obstore.put_async(self._store, path, data, use_multipart=False)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder, self._folder / path)
        except Exception as e:  # noqa: BLE001 -- the library raises OSError, ValueError and its own
            raise _translate("cannot store", path, e) from None

    async def read(self, path: str, start: int, end: int) -> bytes:
        """Read the bytes from start to before end.

        Raises:
            ObjectGone: there is no such object.
            ArchiveError: it cannot be read.
        """
        import obstore  # noqa: PLC0415 -- optional, and slow to load

        if start == end:
            return b""
        try:
            data = await obstore.get_range_async(self._store, path, start=start, end=end)
        except FileNotFoundError:
            raise ObjectGone(f"{path} is gone") from None
        except Exception as e:  # noqa: BLE001 -- as above
            raise _translate("cannot read", path, e) from None
        return data.to_bytes()

    async def list(self, folder: str) -> list[Stored]:
        """List all objects below a folder, sorted by path.

        Raises:
            ArchiveError: it cannot be listed.
        """
        import obstore  # noqa: PLC0415 -- optional, and slow to load

        entries = list[Stored]()
        try:
            async for page in obstore.list(self._store, folder, chunk_size=1000):
                entries += [Stored(str(entry["path"]), int(entry["size"])) for entry in page]
        except Exception as e:  # noqa: BLE001 -- as above
            raise _translate("cannot list", folder, e) from None
        return sorted(entries)

    async def check_format(self) -> None:
        """Make sure that no newer release has stored chunks in a format of its own.

        Raises:
            ArchiveError: one has, or the archive cannot be listed.
        """
        if newer := [name for name in await self.folders("") if is_newer_root(name)]:
            raise ArchiveError(
                f"the archive has {newer[-1]}/, which a newer fleetbus has written, and this"
                f" release, {release().version}, knows {ROOT}/. Nothing was changed. Run the newer"
                " release, which reads both; to go on with this one, move that folder away"
            )

    async def folders(self, folder: str) -> list[str]:
        """List the folders right below one, or below the archive itself, sorted, by their names.

        Raises:
            ArchiveError: it cannot be listed.
        """
        import obstore  # noqa: PLC0415 -- optional, and slow to load

        try:
            listing = await obstore.list_with_delimiter_async(self._store, folder)
        except Exception as e:  # noqa: BLE001 -- as above
            raise _translate("cannot list", folder or "the archive", e) from None
        return sorted(
            str(path).rstrip("/").rsplit("/", 1)[-1] for path in listing["common_prefixes"]
        )

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are gone already do not matter.

        Raises:
            ArchiveError: some may be left.
        """
        import obstore  # noqa: PLC0415 -- optional, and slow to load

        if not paths:
            return
        try:
            await obstore.delete_async(self._store, list(paths))
        except FileNotFoundError:
            return
        except Exception as e:  # noqa: BLE001 -- as above
            raise _translate("cannot delete", paths[0], e) from None

    async def remove_partial(self) -> None:
        """Remove the unfinished files that a killed writer left in a folder.

        Raises:
            ArchiveError: one cannot be removed.
        """
        if self._folder is None:
            return
        try:
            await asyncio.to_thread(_remove_partial, self._folder)
        except OSError as e:
            raise ArchiveError(f"cannot remove an unfinished file: {e.strerror}") from e


def open_store(access: Access, *, create: bool = False) -> ArchiveStore:
    """Open the store of an archive; nothing is contacted yet.

    Args:
        access: where it is.
        create: make the folder if it is missing.

    Raises:
        ConfigError: the address or a file of it is wrong, or the library is not installed.
    """
    try:
        import obstore.store as library  # noqa: PLC0415 -- optional, and slow to load
    except ModuleNotFoundError as e:
        raise ConfigError(
            "archive support is not installed (pip install 'fleetbus[archive]')"
        ) from e
    parts = urlsplit(access.url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        folder = pathlib.Path(unquote(parts.path))
        try:
            local = library.LocalStore(folder, mkdir=create)
        except Exception as e:  # noqa: BLE001 -- as above
            raise ConfigError(f"{access.url}: {_brief(e)}") from None
        return ArchiveStore(local, folder)
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc and not parts.query:
        return ArchiveStore(_open_bucket(library.S3Store, access, parts.netloc, parts.path))
    raise ConfigError(
        f"{_without_login(access.url)}: an archive is file:///folder or s3://bucket/prefix,"
        " without credentials in it"
    )


def _open_bucket(kind: type[S3Store], access: Access, bucket: str, prefix: str) -> S3Store:
    client: ClientConfig = {
        "allow_http": access.endpoint.startswith("http://"),
        "timeout": _TIMEOUT,
        "connect_timeout": _CONNECT_TIMEOUT,
    }
    if access.ca_file is not None:
        client["root_certificate"] = _read_file(access.ca_file)
    # The archiver repeats what failed, and says so; many tries inside the library would hide it.
    retry: RetryConfig = {"max_retries": 2, "retry_timeout": _TIMEOUT}
    config: S3Config = {}
    if access.endpoint:
        config["endpoint"] = access.endpoint
    if access.region:
        config["region"] = access.region
    folder = access.credentials
    try:
        return kind(
            bucket,
            prefix=prefix.strip("/") or None,
            client_options=client,
            retry_config=retry,
            credential_provider=None if folder is None else _Files(folder),
            config=config,
        )
    except Exception as e:  # noqa: BLE001 -- as above
        raise ConfigError(f"{access.url}: {_brief(e)}") from None


class _Files:
    """Reads the credentials from files, and again each minute: a mounted Secret may change."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def __call__(self) -> S3Credential:
        token = self._folder / "AWS_SESSION_TOKEN"
        return {
            "access_key_id": _read_file(self._folder / "AWS_ACCESS_KEY_ID"),
            "secret_access_key": _read_file(self._folder / "AWS_SECRET_ACCESS_KEY"),
            "token": _read_file(token) if token.exists() else None,
            "expires_at": datetime.now(UTC) + READ_AGAIN,
        }


def _read_file(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not text in UTF-8"
        raise ConfigError(f"{path}: {reason}") from None


def _sync(root: pathlib.Path, path: pathlib.Path) -> None:
    """Write a file and the folders that lead to it through to the disk."""
    for place in (path, *path.parents):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if place == root:
            return


def _remove_partial(root: pathlib.Path) -> None:
    for path in root.glob("v1/*/*/*#*"):
        if _PARTIAL.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _translate(action: str, path: str, error: Exception) -> ArchiveError:
    name = read_name(path)
    # Logs hide long strings of digits, as they may be secrets.
    subject = path if name is None else f"sequences {name.first} to {name.last}"
    return ArchiveError(f"{action} {subject}: {_brief(error)}")


def _brief(error: Exception) -> str:
    """The reason, without the server's answer: it may quote tokens and signatures."""
    text = str(error) or type(error).__name__
    if match := _OUR_OWN.search(text):
        return match[1]
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        return " ".join(filter(None, [status and status[0].strip(), code and code[1]]))
    for kind, reason in _REFUSED:
        if type(error).__name__.startswith(kind):
            return reason
    first = _ELAPSED.sub("", text.split("\n", 1)[0])[:_ERROR_AT_MOST]
    cause = _SYSTEM.search(text)
    return f"{first}: {cause[1]}" if cause is not None and cause[1] not in first else first


def _without_login(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", url)
