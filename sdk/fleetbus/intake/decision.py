"""Decides about one object: whether its own request runs, and what is remembered of it (rule P8).

Pure functions of an `Evaluation`, once all watches were asked. The request runs in the cases below,
unless a successful run is known to have read all of it (`_is_read`):

| case    | the object                            | its request runs if        | remembered      |
|---------|---------------------------------------|----------------------------|-----------------|
| LATE    | is older than what was seen           | a watch asks               | what was seen   |
| GONE    | is deleted; it may have left before,  | a watch asks, or no run    | the deletion,   |
|         | which a run has to know               | knows that it had left     | until it's read |
| DELETED | is deleted                            | a watch asks               | nothing         |
| PRESENT | exists                                | a watch asks, or no run    | its state, if   |
|         |                                       | has answered its last wake | it matters      |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from fleetbus.intake.matching import Evaluation, Reason
from fleetbus.intake.record import NEVER, LastSeen, is_older, pack
from fleetbus_proto.versions import is_comparable


class Case(Enum):
    """Where an object stands; the table above says what follows."""

    LATE = auto()
    GONE = auto()
    DELETED = auto()
    PRESENT = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of an evaluation.

    Attributes:
        wakes_own: whether the object's own request runs.
        is_skipped: whether it would run, had not a successful run read all of it.
        last_seen: what to remember; None for nothing.
    """

    wakes_own: bool
    is_skipped: bool
    last_seen: LastSeen | None


def decide(evaluation: Evaluation, *, may_leave: bool) -> Decision:
    """Decide about one object.

    Args:
        evaluation: the object, and what its watches have found.
        may_leave: whether the controller's watches ever report an object of the resource as left.
    """
    case = case_of(evaluation, may_leave=may_leave)
    is_left = _has_left(evaluation)
    is_asked = evaluation.wakes_own or (case is Case.GONE and _is_leaving_unread(evaluation))
    is_wanted = is_asked or (
        # Nothing is new, but the run that it woke last may not have happened yet.
        _is_still_woken(evaluation) and (is_left or evaluation.is_member)
    )
    wakes_own = is_wanted and not _is_read(evaluation, case, is_left=is_left)
    last_seen = _remembered(evaluation, case, is_left=is_left, is_woken=wakes_own)
    return Decision(wakes_own, is_asked and not wakes_own, last_seen)


def case_of(evaluation: Evaluation, *, may_leave: bool) -> Case:
    """The row of the table."""
    if evaluation.is_late:
        return Case.LATE
    if evaluation.is_deleted:
        return Case.GONE if may_leave else Case.DELETED
    return Case.PRESENT


def _has_left(evaluation: Evaluation) -> bool:
    """Whether it matched an identity watch once, and matches none now."""
    before = evaluation.stored.last_seen
    return not evaluation.is_member and before is not None and (before.is_left or before.is_member)


def _is_leaving_unread(evaluation: Evaluation) -> bool:
    """Whether it had left before, and no run is known to have received that."""
    last_seen, read = evaluation.last_seen, evaluation.stored.read
    return (
        last_seen is not None
        and last_seen.is_left
        and (read is None or is_older(read, last_seen.woken))
    )


def _is_still_woken(evaluation: Evaluation) -> bool:
    """Whether it is evaluated again as it was: it is done once its last wake was answered."""
    return (
        evaluation.is_unchanged and evaluation.last_seen is not None and not evaluation.has_entered
    )


# --- is it done already? --------------------------------------------------------------------------


def _is_read(evaluation: Evaluation, case: Case, *, is_left: bool) -> bool:
    """Whether a successful run has read all that a new run could do something about."""
    read, before = evaluation.stored.read, evaluation.stored.last_seen
    knew_left = before is not None and before.is_left
    if read is None or evaluation.reason is Reason.NEW_CODE:
        return False  # nothing was read, or other code has read it
    if case is Case.LATE:
        # What matched then does not match now: whoever runs has to know that it left.
        is_lost = evaluation.has_matched_late and before is not None and not before.is_member
        if is_lost and not knew_left:
            return False
    elif is_left != knew_left:
        return False  # it has just left or come back: that run received the opposite
    if case is Case.GONE and read != evaluation.version:
        # A newer version may be that of what came back under the name; and an older run has not
        # seen the deletion.
        return False
    woken = (
        evaluation.last_seen.woken
        if evaluation.last_seen and _is_still_woken(evaluation)
        else evaluation.version
    )
    return not is_older(read, woken)


# --- what is remembered ---------------------------------------------------------------------------


def _remembered(
    evaluation: Evaluation, case: Case, *, is_left: bool, is_woken: bool
) -> LastSeen | None:
    match case:
        case Case.LATE:
            return _seen_before(evaluation)
        case Case.GONE:
            return _deletion(evaluation, is_woken=is_woken)
        case Case.DELETED:
            return None
        case Case.PRESENT:
            is_of_interest = evaluation.members or is_left or evaluation.keeps_state
            return (
                _state(evaluation, is_left=is_left, is_woken=is_woken) if is_of_interest else None
            )


def _seen_before(evaluation: Evaluation) -> LastSeen | None:
    """The newer state, and that something left which had matched in between."""
    before = evaluation.stored.last_seen
    if before is None:
        return None
    has_left = before.is_left or (evaluation.has_matched_late and not before.is_member)
    return msgspec.structs.replace(before, is_left=has_left)


def _deletion(evaluation: Evaluation, *, is_woken: bool) -> LastSeen | None:
    """The deletion, until a run has read it: what comes back and does not match has then left."""
    own_watches = {watch: None for watch, targets in evaluation.members.items() if targets is None}
    is_left = not own_watches and _is_leaving_unread(evaluation)
    if is_woken and (own_watches or is_left) and is_comparable(evaluation.version[1]):
        return LastSeen(
            evaluation.version, evaluation.version, {**own_watches}, is_left=is_left, is_gone=True
        )
    before = evaluation.last_seen
    if before is None or not before.is_gone:
        return None
    return before


def _state(evaluation: Evaluation, *, is_left: bool, is_woken: bool) -> LastSeen:
    before, body = evaluation.last_seen, evaluation.event.object
    return LastSeen(
        version=evaluation.version,
        woken=evaluation.version if is_woken else before.woken if before else NEVER,
        members=evaluation.members,
        is_left=is_left,
        unmatched=evaluation.unmatched,
        state=pack(body) if evaluation.keeps_state and body else b"",
    )
