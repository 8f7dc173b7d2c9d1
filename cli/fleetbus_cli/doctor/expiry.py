"""Checks of credentials that expire: tokens, client certificates and JWTs of NATS in files."""

from __future__ import annotations

import base64
import binascii
import pathlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fleetbus.errors import ConfigError, CredentialsError
from fleetbus.kube.connection.config import KubeConfig, user_fields
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile, TlsFiles
from fleetbus.process.access.tokens import read_expiry, read_lifetime
from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus.process.human_time import render_duration
from fleetbus_cli.doctor.certificate_files import Validity, read_pem

_SOON: Final = timedelta(days=7)
_SOON_SHARE: Final = 0.2
"""Share of a shorter lifetime: a token of an hour is renewed long before its last day."""
_RENEWED_SHARE: Final = 0.4
"""The part of a token's life that is left when its renewal has failed for a while: it is due at
half of it."""


def check_validity(
    about: str, subject: str, validity: Validity, advice: str, *, is_renewed: bool = False
) -> Finding:
    """Find out whether something has expired, or will soon.

    Args:
        about: the part of the fleet.
        subject: a token or certificate, for a message: never its content.
        validity: when it begins and ends.
        advice: how to renew it.
        is_renewed: whether fleetbus renews it, so that it never comes close to its end.
    """
    left = validity.ends - datetime.now(UTC)
    ends = f"{validity.ends:%Y-%m-%d %H:%M:%S} UTC"
    if left <= timedelta():
        return error(about, f"{subject} expired at {ends}", advice)
    if left >= _warn_within(validity, is_renewed=is_renewed):
        return ok(about, f"{subject} is valid until {ends}")
    span = render_duration(left.total_seconds())
    message = f"{subject} expires in {span}, at {ends}"
    return warning(about, f"{message}, and was not renewed" if is_renewed else message, advice)


def _warn_within(validity: Validity, *, is_renewed: bool) -> timedelta:
    if validity.begins is None:
        return _SOON
    life = validity.ends - validity.begins
    return min(_SOON, life * (_RENEWED_SHARE if is_renewed else _SOON_SHARE))


def read_jwt(token: str) -> Validity | None:
    """The validity of a JWT; None if it does not expire, or is none."""
    expiry = read_expiry(token)
    if expiry is None:
        return None
    try:
        ends = datetime.fromtimestamp(expiry, UTC)
        life = read_lifetime(token)
        return Validity(ends - timedelta(seconds=life) if life else None, ends)
    except (ValueError, OverflowError, OSError):  # outside of what a datetime can be
        return None


def check_nats_files(access: NatsAccess) -> Iterator[Finding]:
    """Check the files that a login of NATS needs."""
    about = "credentials of nats"
    if access.creds is not None:
        try:
            validity = read_jwt(access.read_creds()[0])
        except CredentialsError as e:
            yield error(about, str(e), "mount the file, or correct the setting")
        else:
            if validity is not None:
                advice = f"issue a new JWT for {access.creds}; it is read at each login"
                yield check_validity(about, f"the JWT of {access.creds}", validity, advice)
    yield from check_tls_files(about, access.tls)


def check_tls_files(about: str, tls: TlsFiles) -> Iterator[Finding]:
    """Check the certificates in files."""
    for file in (tls.ca, tls.cert):
        if file is not None:
            yield _check_file(about, file)


def _check_file(about: str, file: SecretFile) -> Finding:
    advice = f"renew {file}; it is read again for each connection"
    try:
        validity = min(read_pem(file.read()), key=lambda certificate: certificate.ends)
    except CredentialsError as e:
        message = str(e) if str(file) in str(e) else f"{file}: {e}"
        return error(about, message, "mount the file, or correct the setting")
    return check_validity(about, f"the certificate of {file}", validity, advice)


def check_kubeconfig(
    about: str, config: KubeConfig, advice: str, *, is_renewed: bool = False
) -> Iterator[Finding]:
    """Check the token and the client certificate of a kubeconfig's current context."""
    try:
        user = user_fields(config)
        token, pem = _text(user, "token", config), _text(user, "client-certificate", config)
        validity = read_jwt(token.strip())
        if validity is not None:
            subject = f"the token in {config.source}"
            yield check_validity(about, subject, validity, advice, is_renewed=is_renewed)
        if pem:
            subject = f"the client certificate in {config.source}"
            yield check_validity(about, subject, read_pem(pem)[0], advice)
    except (ConfigError, CredentialsError) as e:
        text = str(e)
        message = text if config.source in text else f"{config.source}: {text}"
        yield error(about, message, advice)


def _text(user: Mapping[str, Any], name: str, config: KubeConfig) -> str:
    """A field of a user, which may also be base64 in `<name>-data` or in a file.

    Raises:
        ConfigError: it cannot be read.
    """
    if data := user.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True).decode()
        except (binascii.Error, ValueError):
            raise ConfigError(f"{name}-data is not base64-encoded text") from None
    if name == "token":
        if user.get(name):
            return str(user[name])
        name = "tokenFile"
    path = user.get(name)
    if not path or not config.own:  # a file is only read for a kubeconfig of our user (rule S7)
        return ""
    folder = pathlib.Path(config.source).expanduser().parent
    try:
        return (folder / str(path)).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{name} {path}: cannot be read: {type(e).__name__}") from None
