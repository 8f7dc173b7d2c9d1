from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.rigs.archive import ArchiveRig, archive_rig
from support.servers.s3_server import S3Server, s3_server


@pytest.fixture
async def rig(nats_url: str, tmp_path: Path) -> AsyncGenerator[ArchiveRig]:
    """A stream, and an archive in a folder."""
    async with archive_rig(nats_url, tmp_path) as opened:
        yield opened


@pytest.fixture
async def s3() -> AsyncGenerator[S3Server]:
    """A server that speaks S3."""
    async with s3_server() as server:
        yield server


@pytest.fixture
async def bucket_rig(nats_url: str, tmp_path: Path, s3: S3Server) -> AsyncGenerator[ArchiveRig]:
    """A stream, and an archive in a bucket."""
    async with archive_rig(nats_url, tmp_path, s3=s3) as opened:
        yield opened
