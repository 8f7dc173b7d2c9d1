"""Nkeys of users: seeds, public keys, and signatures."""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, Final, cast

import nkeys
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from fleetbus.errors import CredentialsError

_PUBLIC_BYTES: Final = 35
"""The kind, 32 bytes of the key, and a checksum."""


def make_seed() -> str:
    """A new seed of a user, `SU…`; whoever has it is the user."""
    encode: Any = cast("Any", nkeys).encode_seed
    return bytes(encode(os.urandom(32), _user_kind())).decode()


def public_key(seed: str) -> str:
    """The public key of a seed, `U…`.

    Raises:
        CredentialsError: it is no seed of a user; does not quote it.
    """
    public = _pair(seed).public_key.decode()
    if not is_public_key(public):
        raise CredentialsError("not the seed of a user's nkey")
    return str(public)


def sign(seed: str, message: bytes) -> bytes:
    """Sign a message with a seed: 64 bytes.

    Raises:
        CredentialsError: it is no seed; does not quote it.
    """
    return bytes(_pair(seed).sign(message))


def is_public_key(text: str) -> bool:
    """Whether it is the public key of a user, with a right checksum."""
    return _raw(text) is not None


def is_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key has signed the message."""
    raw = _raw(public)
    if raw is None:
        return False
    try:
        VerifyKey(raw).verify(message, signature)
    except (CryptoError, ValueError):  # another length is a ValueError
        return False
    return True


def _raw(public: str) -> bytes | None:
    """The 32 bytes of a user's public key; None if it is none, or in another spelling."""
    try:
        content = base64.b32decode(public)
    except (binascii.Error, ValueError):
        return None
    if len(content) != _PUBLIC_BYTES or content[0] != _user_kind():
        return None
    checksum: Any = cast("Any", nkeys).crc16(content[:-2])
    is_whole = int.from_bytes(content[-2:], "little") == checksum
    return content[1:-2] if is_whole else None


def _pair(seed: str) -> Any:
    try:
        return cast("Any", nkeys).from_seed(bytearray(seed.strip().encode()))
    except (nkeys.NkeysError, ValueError):
        raise CredentialsError("not the seed of an nkey") from None


def _user_kind() -> int:
    return cast("int", cast("Any", nkeys).PREFIX_BYTE_USER)
