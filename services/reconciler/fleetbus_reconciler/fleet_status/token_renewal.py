"""Renews the tokens of the accounts on members, before they expire (rule S7).

A join with limited accounts writes kubeconfig Secrets whose tokens live for a day. Each account may
ask its own cluster for another token, so nothing more is needed here than the Secret. Every
projector does so: the resourceVersion that was read is the precondition of the write, and of two
renewals at the same time the second one fails, which harms nothing.

A cluster that is suspended is renewed too: otherwise it could not be resumed without its
administrator.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from fleetbus.clusters.access import checked, read_kubeconfig
from fleetbus.clusters.account_tokens import RenewableSecret, request_token
from fleetbus.clusters.membership import KUBECONFIG_LABELS
from fleetbus.clusters.providers.cluster import SECRETS
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import Conflict, FleetbusError, NotAccepted, Unauthorized
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.access.tokens import read_expiry
from fleetbus.process.clock import rfc3339
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import pause_of
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

LEFT: Final = Gauge(
    "fleetbus_member_token_left_ratio",
    "The part of its life that the token of an account on a member has left: renewed at 0.5,"
    " expired at 0.",
    ["cluster", "account"],
)
RENEWALS: Final = Counter(
    "fleetbus_member_token_renewals_total",
    "Attempts to renew the token of an account on a member, by outcome: renewed, failed, or"
    " superseded by another projector.",
    ["cluster", "account", "outcome"],
)
_INTERVAL: Final = timedelta(seconds=60)
_APART: Final = timedelta(seconds=20)
"""Projectors wait for a random part of this, so that mostly one of them renews a token."""
_BACKOFF_FIRST: Final = timedelta(minutes=1)
_BACKOFF_CAP: Final = timedelta(minutes=10)
_WITHIN: Final = timedelta(seconds=30)

_Key = tuple[str, str]


class TokenRenewal:
    """Renews all tokens that a join wrote.

    Args:
        hub: access data of the hub; None means the pod's service account.
        clusters: the fleet.
        namespace: of the kubeconfig Secrets of Clusters.
        watcher_secrets: the Secrets of watchers of their own, as namespace/name.
        now: the time, in seconds since 1970.
        apart: see `_APART`.
        backoff_first: the pause after the first failure of a Secret.
    """

    def __init__(
        self,
        *,
        hub: KubeConfig | None,
        clusters: Clusters,
        namespace: str,
        watcher_secrets: Iterable[str] = (),
        now: Callable[[], float] = time.time,
        apart: timedelta = _APART,
        backoff_first: timedelta = _BACKOFF_FIRST,
    ) -> None:
        self._config = hub
        self._clusters = clusters
        self._namespace = namespace
        self._watcher_secrets = [tuple(path.split("/", 1)) for path in watcher_secrets]
        self._now = now
        self._apart = apart
        self._backoff_first = backoff_first
        # Of each Secret that failed: how often in a row, and when to try again (`monotonic`).
        self._failures: dict[_Key, tuple[int, float]] = {}
        self._shown: set[_Key] = set()
        self._log_once = LogOnce()

    async def run(self) -> None:
        """Renew until cancelled."""
        async with KubeClient(self._config) as hub:
            while True:
                try:
                    await self.renew_all(hub)
                except Exception as e:  # noqa: BLE001 -- the hub is away: try again
                    if self._log_once.should_log(str(e)):
                        log.warning("member_tokens_not_read", error=str(e))
                await asyncio.sleep(_INTERVAL.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311

    async def renew_all(self, hub: KubeClient) -> None:
        """Renew each token that is due and is not waiting after a failure.

        Raises:
            KubeError: the hub refused, or did not answer.
        """
        await self._clusters.known()
        secrets = [RenewableSecret(secret) for secret in await self._read_all(hub)]
        secrets = [
            secret
            for secret in secrets
            if secret.is_renewable and self._clusters.get(secret.cluster)
        ]
        self._show(secrets)
        current = {(secret.namespace, secret.name) for secret in secrets}
        self._failures = {key: failure for key, failure in self._failures.items() if key in current}
        due = [
            secret for secret in secrets if secret.is_due(self._now()) and not self._waits(secret)
        ]
        await for_each(due, lambda secret: self._renew(hub, secret))

    async def _read_all(self, hub: KubeClient) -> list[Object]:
        labels = ",".join(f"{key}={value}" for key, value in KUBECONFIG_LABELS.items())
        secrets = await hub.list(SECRETS, self._namespace, label_selector=labels)
        for namespace, name in self._watcher_secrets:
            secret = await hub.get(SECRETS, namespace, name)
            if secret is not None:
                secrets.append(secret)
        return secrets

    def _show(self, secrets: Iterable[RenewableSecret]) -> None:
        series: set[_Key] = set()
        for secret in secrets:
            labels = (secret.cluster, secret.account)
            LEFT.labels(*labels).set(round(secret.left(self._now()), 4))
            series.add(labels)
        for labels in self._shown - series:
            LEFT.remove(*labels)
        self._shown = series

    def _waits(self, secret: RenewableSecret) -> bool:
        _, until = self._failures.get((secret.namespace, secret.name), (0, float("-inf")))
        return time.monotonic() < until

    async def _renew(self, hub: KubeClient, secret: RenewableSecret) -> None:
        """Renew one token; a failure is logged, counted and tried again later."""
        labels = (secret.cluster, secret.account)
        try:
            await asyncio.sleep(self._apart.total_seconds() * random.random())  # noqa: S311
            async with asyncio.timeout(_WITHIN.total_seconds()):
                is_renewed = await self._try(hub, secret)
        except (FleetbusError, TimeoutError) as e:
            RENEWALS.labels(*labels, "failed").inc()
            self._note_failure(secret, e)
        else:
            RENEWALS.labels(*labels, "renewed" if is_renewed else "superseded").inc()
            self._failures.pop((secret.namespace, secret.name), None)
            if is_renewed:
                log.info("member_token_renewed", cluster=secret.cluster, account=secret.account)

    async def _try(self, hub: KubeClient, candidate: RenewableSecret) -> bool:
        """Renew one token; False if another projector has done so."""
        place = (candidate.namespace, candidate.name)
        obj = await hub.get(SECRETS, *place)
        if obj is None or not (secret := RenewableSecret(obj)).is_due(self._now()):
            return False
        async with KubeClient(self._access(secret, obj)) as member:
            await self._check_identity(secret.cluster, member)
            token = await request_token(member, secret.account, secret.lifetime)
        if secret.outlasts(token):
            raise _too_short(token)
        try:
            written = await hub.patch(SECRETS, *place, secret.with_token(token))
        except Conflict:  # it was changed since it was read
            return False
        if RenewableSecret(written).is_due(self._now()):
            raise _too_short(token)  # it is better than the old one; the next try waits
        return True

    def _access(self, secret: RenewableSecret, obj: Object) -> KubeConfig:
        """The access data in the Secret, with the settings of the Cluster."""
        info = self._clusters.get(secret.cluster)
        config, problem = read_kubeconfig(f"{secret.namespace}/{secret.name}", obj)
        if config is not None and info is not None and info.config is not None:
            config = replace(config, insecure=info.config.insecure, http=info.config.http)
        config, problem = checked((config, problem))
        if config is None:
            raise FleetbusError(problem)
        return config

    async def _check_identity(self, cluster: str, member: KubeClient) -> None:
        """Refuse the token of another cluster than the accepted one (rule W13)."""
        info = self._clusters.get(cluster)
        accepted = await self._clusters.accepted_uid(cluster) or (info.uid if info else "")
        uid = await member.kube_system_uid()
        if accepted and uid != accepted:
            raise NotAccepted(0, "NotAccepted", f"another cluster answers, with the UID {uid}")

    def _note_failure(self, secret: RenewableSecret, error: Exception) -> None:
        key = (secret.namespace, secret.name)
        failed = self._failures.get(key, (0, 0.0))[0] + 1
        pause = pause_of(failed, self._backoff_first, _BACKOFF_CAP)
        self._failures[key] = (failed, time.monotonic() + pause.total_seconds())
        expired = isinstance(error, Unauthorized) or secret.left(self._now()) <= 0
        how = f"fleetbus join {secret.cluster} --bootstrap, with an administrator's kubeconfig"
        log.warning(
            "member_token_not_renewed",
            cluster=secret.cluster,
            account=secret.account,
            error=str(error) or "the cluster does not answer",
            expires=rfc3339(datetime.fromtimestamp(secret.expiry, UTC), timespec="seconds"),
            **({"to_do": how} if expired else {}),
        )


def _too_short(token: str) -> FleetbusError:
    ends = rfc3339(datetime.fromtimestamp(read_expiry(token) or 0, UTC), timespec="seconds")
    return FleetbusError(
        f"the cluster issued a token that expires at {ends}, too soon: compare its clock with the"
        " hub's"
    )
