"""The query parameters of a Kubernetes API; unknown ones are refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from fleetbus.kube.selectors import FieldSelector, InvalidSelector, LabelSelector
from fleetbus_query_api.fields.kubernetes_names import translate_fields
from fleetbus_query_api.kube.problems import InvalidOptionsProblem, bad_parameter
from fleetbus_query_api.objects.listing import read_selectors
from fleetbus_query_api.requests.parameters import check_repeats
from fleetbus_query_api.responses.problem import BadRequestProblem

_READ: Final = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "includeObject",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)
_WITHOUT_EFFECT: Final = ("pretty", "timeout")
"""Parameters of the form and duration of an answer; every client may send them."""
_MATCHES: Final = ("Exact", "NotOlderThan")
_INCLUDED: Final = ("None", "Metadata", "Object")
_MAX_SELECTOR: Final = 4096
_MAX_TOKEN: Final = 2048
_MAX_INTEGER: Final = 2**63 - 1
_MAX_VERSION: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeParameters:
    """The parameters of a get, a list or a watch.

    Attributes:
        limit: objects per page; None for all.
        resource_version: None if it is not given.
        send_initial_events: None if it is not given.
        timeout_seconds: of a watch; None if it is not given.
        include_object: how much of its object a row of a Table has.
    """

    labels: LabelSelector
    fields: FieldSelector
    limit: int | None
    continue_token: str
    resource_version: int | None
    resource_version_match: str
    watch: bool
    allow_watch_bookmarks: bool
    send_initial_events: bool | None
    timeout_seconds: int | None
    include_object: str

    @classmethod
    def read(cls, pairs: Sequence[tuple[str, str]], key: str) -> Self:
        """Parse query parameters.

        Args:
            pairs: their names and values.
            key: of the resource, whose fields may have other names in selectors.

        Raises:
            BadRequestProblem: one is unknown, given twice, or malformed.
            InvalidOptionsProblem: two contradict each other.
        """
        check_repeats([name for name, _ in pairs])
        for name, _ in pairs:
            if name not in _READ and name not in _WITHOUT_EFFECT:
                names = ", ".join((*_READ, *_WITHOUT_EFFECT))
                raise BadRequestProblem(f"unknown query parameter {name[:80]!r}; known: {names}")
        parameters = dict(pairs)
        fields, labels = _read_selectors(parameters)
        parsed = cls(
            labels=labels,
            fields=translate_fields(key, fields),
            limit=_read_integer(parameters, "limit", _MAX_INTEGER) or None,
            continue_token=_within(parameters, "continue", _MAX_TOKEN),
            resource_version=_read_integer(parameters, "resourceVersion", _MAX_VERSION),
            resource_version_match=_read_choice(parameters, "resourceVersionMatch", _MATCHES),
            watch=bool(_read_flag(parameters, "watch")),
            allow_watch_bookmarks=bool(_read_flag(parameters, "allowWatchBookmarks")),
            send_initial_events=_read_flag(parameters, "sendInitialEvents"),
            timeout_seconds=_read_integer(parameters, "timeoutSeconds", _MAX_INTEGER),
            include_object=_read_choice(parameters, "includeObject", _INCLUDED) or "Metadata",
        )
        if parsed.watch:
            parsed.check_watch()
        else:
            parsed.check_list()
        return parsed

    def check_watch(self) -> None:
        """Refuse parameters that contradict each other in a watch; as API servers do.

        Raises:
            InvalidOptionsProblem: two do.
        """
        match, field = "resourceVersionMatch", "sendInitialEvents"
        if self.send_initial_events is None:
            if self.resource_version_match:
                reason = f"{match} is forbidden for watch unless {field} is provided"
                raise InvalidOptionsProblem(match, reason)
        elif self.resource_version_match != "NotOlderThan":
            reason = f"{field} requires setting {match} to NotOlderThan"
            raise InvalidOptionsProblem(match, reason)

    def check_list(self) -> None:
        """Refuse parameters that contradict each other in a list; as API servers do.

        Raises:
            InvalidOptionsProblem: two do.
            BadRequestProblem: a version beside a continue token.
        """
        match = "resourceVersionMatch"
        if self.send_initial_events is not None:
            field = "sendInitialEvents"
            raise InvalidOptionsProblem(field, f"{field} is forbidden for list")
        if self.resource_version_match and self.resource_version is None:
            reason = f"{match} is forbidden unless resourceVersion is provided"
            raise InvalidOptionsProblem(match, reason)
        if self.resource_version_match and self.continue_token:
            raise InvalidOptionsProblem(match, f"{match} is forbidden when continue is provided")
        if self.resource_version_match == "Exact" and self.resource_version == 0:
            reason = f'{match} "exact" is forbidden for resourceVersion "0"'
            raise InvalidOptionsProblem(match, reason)
        if self.continue_token and self.resource_version:
            raise BadRequestProblem(
                "specifying resource version is not allowed when using continue"
            )


def _within(parameters: Mapping[str, str], name: str, most: int) -> str:
    text = parameters.get(name, "")
    if len(text) > most:
        raise bad_parameter(name, f"longer than {most} characters")
    return text


def _read_selectors(parameters: Mapping[str, str]) -> tuple[FieldSelector, LabelSelector]:
    texts = [
        _within(parameters, name, _MAX_SELECTOR) for name in ("fieldSelector", "labelSelector")
    ]
    try:
        return read_selectors(*texts)
    except InvalidSelector as e:
        raise BadRequestProblem(f"unable to parse requirement: {e}") from None


def _read_integer(parameters: Mapping[str, str], name: str, most: int) -> int | None:
    """A number that is not negative; None if the parameter is empty or missing."""
    text = parameters.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad_parameter(name, f"{text[:20]!r} is not a number of 0 or more")
    # Python refuses to parse thousands of digits.
    if len(text) > len(str(most)) or int(text) > most:
        raise bad_parameter(name, f"{text[:30]!r} is larger than {most}")
    return int(text)


def _read_flag(parameters: Mapping[str, str], name: str) -> bool | None:
    text = parameters.get(name)
    if text is None:
        return None
    flag = {"": True, "true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if flag is None:
        raise bad_parameter(name, f"{text[:20]!r} is not true, 1, false or 0")
    return flag


def _read_choice(parameters: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    text = parameters.get(name, "")
    if text and text not in choices:
        raise bad_parameter(name, f"{text[:30]!r} is not one of {', '.join(choices)}")
    return text
