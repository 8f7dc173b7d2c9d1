"""Joins a cluster with limited accounts that it makes there, or repairs such a join.

Everything is checked before anything is changed: the names, which cluster answers (rule W13), and
the administrator's rights on both sides. Then the accounts are made on the member, and their
kubeconfigs are written to the hub; a run that was cut off is finished by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fleetbus.clusters.access import kubeconfig_of
from fleetbus.clusters.account_tokens import (
    SHORTEST,
    access_data,
    limited_server,
    request_token,
)
from fleetbus.clusters.member_rights import WATCHER
from fleetbus.clusters.membership import AlreadyJoined, NotPossible, member_with
from fleetbus.errors import ConfigError, Forbidden, KubeError, Unauthorized
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, upload_refusal
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.kube.impersonation import ServiceAccount
from fleetbus.process.access.tokens import read_expiry
from fleetbus_cli.bootstrap.accounts import (
    MemberAccess,
    Place,
    account_places,
    impersonator_places,
    member_objects,
)
from fleetbus_cli.bootstrap.hub_objects import HubObjects, read_hub
from fleetbus_cli.bootstrap.member import (
    apply_objects,
    half_done,
    member_errors,
    remove_objects,
    require_rights,
)
from fleetbus_cli.bootstrap.options import BootstrapOptions
from fleetbus_cli.bootstrap.selection import ALL, resolve_watched, resolve_written
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

_ANSWERS_WITHIN: Final = timedelta(seconds=30)
_ROLES_TAKE_EFFECT: Final = timedelta(seconds=10)
"""An API server learns of a new role a moment after it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """The outcome of a join; it has no secrets."""

    access: MemberAccess
    uid: str
    """The UID of the member's kube-system."""
    on_member: Sequence[Place]
    on_hub: Sequence[str]
    watcher_secret: str
    """Name of the watcher's own Secret; empty for the pool."""
    expires: datetime
    """When the first of the tokens expires, unless it is renewed."""


async def enroll(
    hub: KubeClient, name: str, admin: KubeConfig, options: BootstrapOptions
) -> Enrolled:
    """Join a cluster with limited accounts, or repair such a join.

    Args:
        hub: the hub, with the rights of the caller.
        name: the cluster's name in the fleet.
        admin: an administrator's access to the cluster, which is not stored.
        options: how to join.

    Raises:
        NotPossible: a name, a right or the kubeconfig is wrong; nothing was changed.
        HalfDone: it failed on the way; the message names what was done.
        KubeError: the hub refused, or did not answer; nothing was changed.
    """
    server = _check(name, admin, options)
    hub_objects = await read_hub(hub, name, options.places)
    pool = hub_objects.pool if options.pool is None else options.pool
    if options.insecure and not pool:
        # Only the Cluster may say so (rule S7), and such a watcher reads nothing but its file.
        raise NotPossible(
            "--insecure needs --pool: a dedicated watcher always verifies the API server"
        )
    hub_uid = await hub.kube_system_uid()
    async with KubeClient(replace(admin, insecure=options.insecure)) as member:
        with member_errors(name):
            async with asyncio.timeout(_ANSWERS_WITHIN.total_seconds()):
                uid = await member.kube_system_uid()
        await _check_identity(hub, name, hub_objects, uid)
        member.verify_identity(
            IdentityCheck(name, accepted=_Fixed(uid), read=member.kube_system_uid)
        )
        with member_errors(name):
            access = await _plan(member, hub_objects, hub_uid, options, pool=pool)
            objects = member_objects(access)
            await require_rights(member, objects)
        await hub_objects.require_rights(hub, pool=access.pool)
        with member_errors(name):
            done = await apply_objects(member, objects, hub_uid)
        tokens = await _tokens(member, access, options.lifetime, done)
        if options.check:
            await _try_all(name, admin, server, options, tokens=tokens, uid=uid, done=done)
        data = {account: access_data(server, token) for account, token in tokens.items()}
        on_hub = await hub_objects.write(hub, access, uid, data, options)
        await remove_objects(member, hub_uid, _outdated(hub_objects, objects))
        if access.pool:  # it may have had a watcher of its own, which nobody needs any more
            await remove_objects(member, hub_uid, account_places(WATCHER))
    expires = min(read_expiry(token) or 0.0 for token in tokens.values())
    return Enrolled(
        access=access,
        uid=uid,
        on_member=done,
        on_hub=on_hub,
        watcher_secret="" if access.pool else hub_objects.watcher_secret[1],
        expires=datetime.fromtimestamp(expires, UTC),
    )


def _outdated(hub_objects: HubObjects, objects: Mapping[Place, Any]) -> list[Place]:
    """Where an earlier join allowed accounts to be impersonated, and this one does not."""
    namespaces = {account.partition("/")[0] for account in hub_objects.impersonated}
    before = [place for namespace in namespaces for place in impersonator_places(namespace)]
    return [place for place in before if place not in objects]


def _check(name: str, admin: KubeConfig, options: BootstrapOptions) -> dict[str, str]:
    """Check what needs no server; returns the cluster section of the limited kubeconfigs."""
    try:
        check_cluster(name)
        if options.lifetime < SHORTEST:
            raise NotPossible("a token must live for 10 minutes at least")
        server = limited_server(admin, options.server, insecure=options.insecure)
    except (InvalidName, ConfigError) as e:
        raise NotPossible(str(e)) from e
    document = kubeconfig_of(server, {"token": "checked-later"})
    limited = KubeConfig(
        document, source=admin.source, insecure=options.insecure, http=options.http
    )
    if problem := upload_refusal(limited):
        raise NotPossible(
            f"{problem}; --server gives the address under which the hub reaches the cluster"
        )
    return server


async def _check_identity(hub: KubeClient, name: str, hub_objects: HubObjects, uid: str) -> None:
    """Refuse a cluster that must not have this name (rule W13)."""
    if hub_objects.uid and hub_objects.uid != uid:
        raise NotPossible(
            f"the name {name!r} is taken: another cluster has it (its kube-system has UID"
            f" {hub_objects.uid}, the one of this kubeconfig {uid}); choose another name, or, only"
            f" if this cluster has replaced that one: fleetbus clusters accept {name} --uid {uid}"
        )
    other = await member_with(hub, uid)
    if other and other != name:
        raise AlreadyJoined(
            f"this cluster is already in the fleet as {other!r}, and a cluster has only one name;"
            f" to rename it: fleetbus unjoin {other}, then join"
        )


async def _plan(
    member: KubeClient,
    hub_objects: HubObjects,
    hub_uid: str,
    options: BootstrapOptions,
    *,
    pool: bool,
) -> MemberAccess:
    watched: Sequence[Any] = (
        (hub_objects.watched or [ALL]) if options.watched is None else options.watched
    )
    written = hub_objects.written if options.written is None else options.written
    accounts = hub_objects.impersonated if options.impersonated is None else options.impersonated
    try:
        impersonated = sorted(map(ServiceAccount.parse, set(accounts)))
    except ConfigError as e:
        raise NotPossible(str(e)) from e
    return MemberAccess(
        cluster=hub_objects.name,
        hub_uid=hub_uid,
        watched=await resolve_watched(member, watched),
        written=await resolve_written(member, written),
        impersonated=tuple(impersonated),
        pool=pool,
    )


async def _tokens(
    member: KubeClient, access: MemberAccess, lifetime: timedelta, done: Sequence[Place]
) -> dict[str, str]:
    try:
        return {
            account: await request_token(member, account, lifetime) for account in access.accounts
        }
    except KubeError as e:
        raise half_done(f"no token: {e}", done) from e


async def _try_all(
    name: str,
    admin: KubeConfig,
    server: dict[str, str],
    options: BootstrapOptions,
    *,
    tokens: Mapping[str, str],
    uid: str,
    done: Sequence[Place],
) -> None:
    """Connect with each limited account, as the processes of the fleet will."""
    limited = replace(admin, own=False, context="", source="limited access", http=options.http)
    limited = replace(limited, insecure=options.insecure)
    for token in tokens.values():
        document = kubeconfig_of(server, {"token": token})
        await _try(name, replace(limited, document=document), uid, done)


async def _try(name: str, limited: KubeConfig, uid: str, done: Sequence[Place]) -> None:
    """Connect with a limited account: its address must lead to the same cluster."""
    problem = "it does not answer"
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(_ROLES_TAKE_EFFECT.total_seconds()),
            KubeClient(limited) as client,
        ):
            while True:
                try:
                    actual_uid = await client.kube_system_uid()
                except (Forbidden, Unauthorized) as e:
                    problem = str(e)
                    await asyncio.sleep(0.2)
                except (KubeError, ConfigError) as e:
                    problem = str(e)
                    break
                else:
                    if actual_uid == uid:
                        return
                    problem = f"another cluster answers there: kube-system has UID {actual_uid}"
                    break
    why = f"cluster {name!r} cannot be used with its limited account: {problem}"
    raise half_done(f"{why} (--no-check joins it anyway)", done)


class _Fixed:
    """The cluster that answered first is the accepted one, for the whole join."""

    def __init__(self, uid: str) -> None:
        self._uid = uid

    async def uid(self, name: str) -> str:
        """The UID."""
        del name
        return self._uid

    async def aliases(self, name: str) -> tuple[str, ...]:
        """None."""
        del name
        return ()
