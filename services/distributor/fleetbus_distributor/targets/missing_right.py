"""Names the right that an API server says is missing (rule D16)."""

from __future__ import annotations

import re
from typing import Final

_REFUSAL: Final = re.compile(
    r'[a-z0-9.]+( "[^"]*")? is forbidden: User "(?P<user>[^"]+)" cannot (?P<verb>[a-z]+) '
    r'resource "(?P<resource>[a-z0-9./-]+)" in API group "(?P<group>[a-z0-9.-]*)"'
    r'( in the namespace "(?P<namespace>[a-z0-9-]+)")?'
)
"""From its start: the words of an admission webhook come later, and may quote the object."""
_ACCOUNT: Final = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")
_QUOTED: Final = re.compile(r'"(?P<name>[^"]*)"')


def missing_right(message: str) -> str:
    """Describe a refusal of the authorizer: who may not do what; "" for any other message."""
    found = _REFUSAL.match(message)
    if found is None:
        return ""
    where = f" in namespace {found['namespace']}" if found["namespace"] else ""
    if found["verb"] == "impersonate" and found["resource"] == "serviceaccounts":
        quoted = _QUOTED.search(message)
        account = f"{found['namespace']}/{quoted['name'] if quoted else ''}"
        return (
            f"{_who(found['user'])} may not impersonate ServiceAccount {account} on this cluster; "
            f"to allow it, repeat its `fleetbus join --bootstrap` with --impersonate {account} "
            "(for the hub itself: distributor.impersonate of the chart)"
        )
    group = f".{found['group']}" if found["group"] else ""
    plural, slash, subresource = found["resource"].partition("/")
    what = f"{found['verb']} {plural}{group}{slash}{subresource}"
    return f"{_who(found['user'])} may not {what}{where} on this cluster"


def _who(user: str) -> str:
    found = _ACCOUNT.fullmatch(user)
    return f"ServiceAccount {found['namespace']}/{found['name']}" if found else f"user {user}"
