"""The accounts of agents, as nats-server reads them: one for each cluster (rule S3).

A server does not check where the answer to a request goes, so whoever shares an account with a
stream, or with another agent, may have something delivered there, whatever his rights are. The
chart's `accounts.conf` includes this text inside `accounts {}`; its account `hub` exports what is
imported here, with `*` for the cluster and for every account: an export for named accounts beside
it would make the whole configuration invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from fleetbus.agents.records import AgentRecord
from fleetbus.agents.rights import Rights, agent_rights, registration_rights

HUB: Final = "hub"
"""The account of all components on the hub."""
_SAMPLE: Final = "any-cluster"
"""Stands for the name of each cluster."""
_CONNECTIONS: Final = 32
"""The connections of one cluster: two agents, two watchers, and room for their successors."""


def render_accounts(records: Iterable[AgentRecord], now: datetime) -> str:
    """The accounts of all agents that may log in, in the order of their names.

    Args:
        records: of the fleet, one for each cluster.
        now: one-time nkeys that have expired are left out.
    """
    used: set[str] = set()
    ordered = sorted(records, key=lambda record: record.cluster)
    return "".join(_account(record, now, used) for record in ordered)


def render_exports() -> str:
    """The exports of the account `hub` that the accounts of all agents import from."""
    rights = agent_rights(_SAMPLE)
    exports = [f'{{ service: "{_of_any_cluster(subject)}" }}' for subject in rights.publish]
    exports += [f'{{ stream: "{_of_any_cluster(subject)}" }}' for subject in rights.imported]
    return "\n".join(["exports: [", *(f"  {one}" for one in exports), "]"]) + "\n"


def _of_any_cluster(subject: str) -> str:
    return ".".join("*" if token == _SAMPLE else token for token in subject.split("."))


def account_name(cluster: str) -> str:
    """The account of the agents of a cluster."""
    return f"agent-{cluster}"


def _account(record: AgentRecord, now: datetime, used: set[str]) -> str:
    """The account of one cluster; empty if nobody may log in."""
    rights = agent_rights(record.cluster)
    allowed = {record.key: rights, record.next_key: rights}
    if record.may_register(now):
        allowed.setdefault(record.one_time, registration_rights(record.cluster))
    # A duplicate user makes the whole configuration invalid.
    users = [_user(key, allowed[key]) for key in allowed if key and key not in used]
    used.update(allowed)
    if not users:
        return ""
    imports = [
        f'{{ stream: {{ account: {HUB}, subject: "{subject}" }} }}' for subject in rights.imported
    ] + [f'{{ service: {{ account: {HUB}, subject: "{subject}" }} }}' for subject in rights.publish]
    lines = [
        f'"{account_name(record.cluster)}" {{',
        f"  limits {{ max_connections: {_CONNECTIONS} }}",
        "  users: [",
        *(f"    {user}" for user in users),
        "  ]",
        "  imports: [",
        *(f"    {one}" for one in imports),
        "  ]",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _user(key: str, rights: Rights) -> str:
    publish, subscribe = (json.dumps(list(each)) for each in (rights.publish, rights.subscribe))
    allowed = f"publish: {{ allow: {publish} }}, subscribe: {{ allow: {subscribe} }}"
    return f"{{ nkey: {key}, permissions: {{ {allowed} }} }}"
