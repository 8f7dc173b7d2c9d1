"""Frames of calls through an agent: named ones for the golden vectors, and random ones."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from fleetbus_proto.calls import (
    AskedBy,
    Body,
    Cancel,
    Credit,
    Failed,
    Frame,
    FrameToAgent,
    FrameToCaller,
    Head,
    Open,
    Reason,
    Working,
)

CALL: Final = "distributor.7f3a91c2.1k"
INSTANCE: Final = "5e1f0a9b"
_OBJECT: Final = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web"}}'

FRAMES: Final[dict[str, Frame]] = {
    "call-open-get": Open(id=CALL, method="GET", path="/api/v1/namespaces/prod/pods/web"),
    "call-open-apply": Open(
        id=CALL,
        method="PATCH",
        path="/api/v1/namespaces/prod/configmaps/web",
        query={"fieldManager": "fleetbus", "force": "true"},
        accept="application/json",
        content_type="application/apply-patch+yaml",
        if_none_match='"a1"',
        as_user="system:serviceaccount:prod:deployer",
        user_agent="fleetbus",
        within=30_000,
        idle=90_000,
        credit=262_144,
        uid="0d8f1c3e-52b5-4c1e-9c1f-6c6b1de0a001",
        asked_by=AskedBy(component="distributor", controller="distributor", object="prod/web"),
        body=_OBJECT,
        more=True,
    ),
    "call-body": Body(id=CALL, seq=1, data=b"\x00\xff", more=True),
    "call-credit": Credit(id=CALL, bytes=524_288, instance=INSTANCE),
    "call-cancel": Cancel(id=CALL),
    "call-head": Head(
        id=CALL,
        instance=INSTANCE,
        status=200,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
        data=b"\x1f\x8b",
        more=True,
    ),
    "call-working": Working(id=CALL, instance=INSTANCE),
    "call-failed": Failed(
        id=CALL,
        reason=Reason.UNREACHABLE,
        message="no answer from the API server: Server disconnected",
        was_sent=True,
    ),
}

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
_COUNTS = st.integers(0, 2**53)
_DATA = st.binary(max_size=64)
IDS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}\.[a-z0-9]{1,8}\.[a-z0-9]{1,16}", fullmatch=True)
_ANY_IDS = st.just(CALL) | IDS | _TEXTS

OPENS: st.SearchStrategy[Open] = st.builds(
    Open,
    id=_ANY_IDS,
    method=st.sampled_from(["GET", "PATCH", "DELETE"]) | _TEXTS,
    path=st.sampled_from(["/version", "/api/v1/pods", "/api/v1/namespaces/a/pods/b"]) | _TEXTS,
    query=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    accept=_TEXTS,
    content_type=_TEXTS,
    if_none_match=_TEXTS,
    as_user=_TEXTS,
    user_agent=_TEXTS,
    within=_COUNTS,
    idle=_COUNTS,
    credit=_COUNTS,
    uid=_TEXTS,
    asked_by=st.builds(AskedBy, component=_TEXTS, controller=_TEXTS, object=_TEXTS),
    body=st.none() | _DATA,
    more=st.booleans(),
)
_BODIES = st.builds(Body, id=_ANY_IDS, seq=_COUNTS, data=_DATA, more=st.booleans())
_CREDITS = st.builds(Credit, id=_ANY_IDS, bytes=_COUNTS, instance=_TEXTS)
TO_AGENT: st.SearchStrategy[FrameToAgent] = st.one_of(
    OPENS, _BODIES, _CREDITS, st.builds(Cancel, id=_ANY_IDS)
)
TO_CALLER: st.SearchStrategy[FrameToCaller] = st.one_of(
    st.builds(
        Head,
        id=_ANY_IDS,
        instance=_TEXTS,
        status=st.integers(100, 999),
        headers=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        data=_DATA,
        more=st.booleans(),
    ),
    _BODIES,
    _CREDITS,
    st.builds(Working, id=_ANY_IDS, instance=_TEXTS),
    st.builds(
        Failed,
        id=_ANY_IDS,
        reason=st.sampled_from([reason.value for reason in Reason]) | _TEXTS,
        message=_TEXTS,
        was_sent=st.booleans(),
    ),
)
