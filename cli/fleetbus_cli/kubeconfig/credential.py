"""Runs `fleetbus kubeconfig credential`: the plugin that kubectl asks for a token."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.process.access.tokens import read_expiry
from fleetbus_cli.api_token import find_token
from fleetbus_cli.target import ApiFlags

API_VERSION = "client.authentication.k8s.io/v1"


def print_credential(flags: ApiFlags) -> int:
    """Print an ExecCredential; return the exit status.

    Raises:
        ConfigError: there is no token, or it would be sent in clear text.
    """
    api_token = find_token(flags.resolve())
    if not api_token.token:
        raise ConfigError(
            "no token is configured: set FLEETBUS_API_TOKEN_FILE or FLEETBUS_TOKEN, or token_file"
            " in ~/.fleetbus/config.yaml"
        )
    status = {"token": api_token.token}
    if (expires := read_expiry(api_token.token)) is not None:
        status["expirationTimestamp"] = datetime.fromtimestamp(expires, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
    printer.json_text(
        json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status})
    )
    return 0
