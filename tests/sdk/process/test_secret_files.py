"""Files with credentials that are no such files: refused at once (rule S8)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetbus.errors import CredentialsError
from fleetbus.process.access.secret_files import SecretFile


def test_s8_a_file_that_would_hang_or_fill_the_memory_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")  # nobody writes: to open it would wait for ever
    (tmp_path / "endless").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(100_000_000)
    for name, problem in (
        ("fifo", "regular"),
        ("endless", "regular"),
        ("huge", "larger than 1024"),
    ):
        with pytest.raises(CredentialsError, match=f"CA_FILE.*{name}.*{problem}"):
            SecretFile("CA_FILE", tmp_path / name).read()


def test_s8_a_mounted_secret_is_read_through_its_symlinks(tmp_path: Path):
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "password").write_text(f"word{number}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "password").symlink_to("..data/password")
    file = SecretFile("PASSWORD_FILE", tmp_path / "password")
    assert file.read() == "word1"
    (tmp_path / "new").symlink_to("..2")
    (tmp_path / "new").replace(tmp_path / "..data")  # as the kubelet does
    assert file.read() == "word2"
