"""Checks of the agent's nkey for `fleetbus-agent doctor`: its Secret, and its registration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

from fleetbus.agents.nkeys import public_key
from fleetbus.errors import BusError, ConfigError, CredentialsError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus_agent.enrolment.enrolment import REGISTRATION_FILE, logged_in
from fleetbus_agent.enrolment.seeds import Seeds, SeedSecret
from fleetbus_agent.settings import AgentSettings

_NKEY: Final = "nkey"
_WITHIN: Final = timedelta(seconds=5)
_SUFFIX: Final = ".doctor"


async def check_nkey(
    settings: AgentSettings, access: NatsAccess, config: KubeConfig | None, uid: str
) -> AsyncIterator[Finding]:
    """Check the Secret with the nkey, then whether the hub knows it.

    Nothing is registered or written: a login with the one-time nkey does not use it up.

    Args:
        settings: of the agent, which keeps a Secret.
        access: how the agent logs in to NATS.
        config: access data of the member's API server; None means the pod's service account.
        uid: of kube-system in this cluster.
    """
    join = f"on the hub, `fleetbus join {settings.cluster} --agent` prints what makes it anew"
    try:
        async with KubeClient(config) as client:
            seeds = await SeedSecret(client, settings.secret).read()
    except ConfigError as e:
        yield error(_NKEY, str(e), f"{join}; delete a damaged Secret before it is applied")
        return
    except KubeError as e:
        advice = "let the agent's account get and patch that Secret: the chart has a Role for it"
        yield error(_NKEY, f"Secret {settings.secret} cannot be read: {e}", advice)
        return
    if seeds.cluster_uid not in ("", uid):
        text = (
            f"Secret {settings.secret} is a copy from another cluster, whose kube-system has UID"
            f" {seeds.cluster_uid}, not {uid}: two agents use one nkey"
        )
        yield error(_NKEY, text, f"delete it here; {join}")
        return
    try:
        one_time = _read_one_time(settings)
    except CredentialsError as e:
        yield error(_NKEY, f"the one-time nkey is unusable: {e}", join)
        return
    yield await _check_registration(settings.cluster, access, seeds, one_time, join)


def _read_one_time(settings: AgentSettings) -> str:
    """The seed of the one-time nkey; empty if none is given."""
    path = settings.registration_file
    return SecretFile(REGISTRATION_FILE, path).read().strip() if path else ""


async def _check_registration(
    cluster: str, access: NatsAccess, seeds: Seeds, one_time: str, join: str
) -> Finding:
    is_new = bool(one_time) and public_key(one_time) != seeds.one_time
    if seeds.is_registered and not is_new:
        return ok(_NKEY, f"{seeds.registered} is registered, in use since {seeds.since}")
    if not seeds.seed and not one_time:
        return error(_NKEY, "the agent has no nkey, and none to register with", join)
    if not is_new and not await _problem_of_login(access, seeds.seed, f"agent.{cluster}"):
        return ok(_NKEY, "the hub has accepted it; the agent notes that within seconds")
    if not one_time:
        return error(_NKEY, "the hub does not know it, and there is no one-time nkey", join)
    problem = await _problem_of_login(access, one_time, f"registration.{cluster}")
    if not problem:
        advice = "the log of the agent has the hub's answer; does an agent with this nkey run?"
        return warning(_NKEY, "not registered yet; the one-time nkey is still valid", advice)
    text = (
        f"not registered: the one-time nkey cannot log in ({problem}): it has expired, or was used"
        " or revoked"
    )
    advice = f"`fleetbus clusters accept {cluster}` on the hub if it waits there; else {join}"
    return error(_NKEY, text, advice)


async def _problem_of_login(access: NatsAccess, seed: str, name: str) -> str:
    """Why a seed cannot log in; empty if it can."""
    try:
        async with logged_in(access, seed, name=name, within=_WITHIN, suffix=_SUFFIX):
            return ""
    except (BusError, ConfigError) as e:
        return str(e)
    except TimeoutError:
        return "NATS does not answer"
