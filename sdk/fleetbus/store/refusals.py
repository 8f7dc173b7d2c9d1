"""Says what to do about a store that answers but refuses, in errors at start and in the log.

None of these passes by a retry alone, or not soon: the retries go on, so that everything continues
by itself once somebody has mended the store.
"""

from __future__ import annotations

from typing import Any, Final, cast

import redis.exceptions as errors
import structlog

from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()

_IS_REPLICA: Final = "it is a replica: the address must lead to the primary"
_LOGIN: Final = (
    "check user and password: FLEETBUS_REDIS_USERNAME and the file FLEETBUS_REDIS_PASSWORD_FILE, or"
    " those in the address"
)
_SENTINEL_LOGIN: Final = (
    "check user and password of the Sentinels: FLEETBUS_REDIS_SENTINEL_USERNAME and the file"
    " FLEETBUS_REDIS_SENTINEL_PASSWORD_FILE, or those in the address"
)
_BY_CLASS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.ReadOnlyError, _IS_REPLICA),
    (errors.MasterDownError, _IS_REPLICA),
    (errors.BusyLoadingError, "it reads its data from disk, and answers when it is done"),
    (errors.NoPermissionError, "give its user the rights that docs/store.md lists"),
    (errors.AuthenticationError, _LOGIN),
    (errors.InvalidResponse, "what listens there is no Redis or Valkey: check host and port"),
)
_BY_TEXT: Final = (
    # redis-py asks the next Sentinel, and quotes in the end why each one did not answer.
    (" - auth:AuthenticationError", _SENTINEL_LOGIN),
    ("CERTIFICATE_VERIFY_FAILED", "check the CA certificates of FLEETBUS_REDIS_CA_FILE"),
    ("_ALERT_", "it refuses our certificate: check FLEETBUS_REDIS_CERT_FILE"),
    ("MISCONF", "make room on its disk, or see in its log why it cannot save"),
    ("NOREPLICAS", "start its replicas, or lower its `min-replicas-to-write`"),
    ("BUSY ", "a script of another program blocks it: `redis-cli SCRIPT KILL` ends one"),
    ("max number of clients", "raise its `maxclients`, or close connections of other programs"),
    ("'SENTINEL'", "what listens there is no Sentinel: check host and port"),
    ("cluster support disabled", "it is in no Cluster: write redis:// instead of redis+cluster://"),
    ("DB index is out of range", "the number at the end of the address is too high"),
)


def hint_for(error: BaseException) -> str:
    """Return what to do about an error of the store; empty if it is none of these."""
    class_hint = next((hint for kind, hint in _BY_CLASS if isinstance(error, kind)), "")
    text = str(error)
    return class_hint or next((hint for phrase, hint in _BY_TEXT if phrase in text), "")


class Refusals:
    """Logs refusals of one store, each kind once and then every 30 s.

    Attributes:
        is_logging: whether it does; not while a process starts, which fails with the same text.
    """

    def __init__(self) -> None:
        self.is_logging = False
        self._log_once = LogOnce()

    def note(self, reply: Any, *, is_list: bool) -> None:
        """Log each refusal in the reply to a command, or in the list of replies to several."""
        if not self.is_logging:
            return
        for item in cast("list[Any]", reply) if is_list and isinstance(reply, list) else (reply,):
            if isinstance(item, Exception):
                self._log(item)

    def _log(self, error: Exception) -> None:
        if (hint := hint_for(error)) and self._log_once.should_log(key=hint):
            log.error("store_refuses", error=str(error), hint=hint)
