"""The auth-provider oidc of kubeconfigs: an ID token, and another when it has expired."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.environment_proxy import environment_proxy
from fleetbus.kube.connection.tls import client_context
from fleetbus.process.access.tokens import read_expiry

_LEEWAY: Final = timedelta(seconds=10)
_LIMIT: Final = aiohttp.ClientTimeout(total=20)


async def id_token(settings: Mapping[str, str], folder: str, where: str) -> str:
    """The ID token, refreshed if it has expired.

    Args:
        settings: the `config` of the auth-provider; a new token is not written back to it.
        folder: the folder for relative paths.
        where: the place of the settings, for messages.

    Raises:
        ConfigError: it has expired, and the issuer gives no other.
    """
    token = settings.get("id-token", "")
    expiry = read_expiry(token)
    if token and expiry is not None and expiry > time.time() + _LEEWAY.total_seconds():
        return token
    if not settings.get("refresh-token"):
        raise ConfigError(f"{where}: 'id-token' has expired, and there is no 'refresh-token'")
    try:
        new_token = await _refresh(settings, folder)
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError, binascii.Error) as e:
        raise ConfigError(f"{where}: 'id-token' cannot be refreshed: {e}") from e
    if not isinstance(new_token, str) or not new_token:
        raise ConfigError(f"{where}: the issuer gave no 'id_token'")
    return new_token


async def _refresh(settings: Mapping[str, str], folder: str) -> object:
    issuer = settings["idp-issuer-url"].rstrip("/")
    proxy = environment_proxy(issuer) or None
    context = client_context(_authority(settings, folder), insecure=False)
    async with aiohttp.ClientSession(
        timeout=_LIMIT, connector=aiohttp.TCPConnector(ssl=context), raise_for_status=True
    ) as session:
        address = f"{issuer}/.well-known/openid-configuration"
        async with session.get(address, proxy=proxy) as response:
            endpoint: Any = (await response.json(content_type=None)).get("token_endpoint")
        form = {
            "grant_type": "refresh_token",
            "refresh_token": settings["refresh-token"],
            "client_id": settings["client-id"],
            "client_secret": settings.get("client-secret", ""),
        }
        async with session.post(str(endpoint), data=form, proxy=proxy) as response:
            return (await response.json(content_type=None)).get("id_token")


def _authority(settings: Mapping[str, str], folder: str) -> bytes:
    if data := settings.get("idp-certificate-authority-data"):
        return base64.b64decode(data)
    if file := settings.get("idp-certificate-authority"):
        return Path(folder, file).read_bytes()
    return b""
