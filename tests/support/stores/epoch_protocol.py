"""A cluster, two watchers and a lossy bus around one snapshot: the epoch protocol at random.

It goes on from the project's model of W7, W15 and P2 to P6 with etcd restores (new incarnations), a
watch that is opened before the list ends, the watch of before, which goes on until it has passed
the list (W24), and audits, which raise the floor when they agree. The snapshot is not in here:
`Run.play` yields what to do to it and is sent the answers, so the same run drives the model and a
real store.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeGuard

from fleetbus_proto.events import AuditPage, EpochEnd, Event
from fleetbus_proto.subjects import Verb
from support.stores.snapshot import Source, body_of

Message = Event | EpochEnd | AuditPage
Ask = tuple[str, Any]
Play = Generator[Ask, Any, None]
Change = tuple[int, str, str, str]
"""(version, verb, name, uid)."""
NAMES = [f"n{i}" for i in range(10)]


def is_deletion(message: Message) -> TypeGuard[Event]:
    """Whether a subscriber learns that an object is gone."""
    return isinstance(message, Event) and message.verb is Verb.DELETED


@dataclass
class Truth:
    """The objects of the API server, and the events that its watch cache still has."""

    version: int = 10
    objects: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    log: list[Change] = field(default_factory=list[Change])

    def change(self, dice: random.Random, uid: str) -> None:
        self.version += dice.choice((1, 1, 2, 5))
        name = dice.choice(NAMES)
        if name not in self.objects:
            self._note("added", name, uid)
        elif dice.random() < 0.5:
            self._note("modified", name, self.objects[name][0])
        else:
            self._note("deleted", name, self.objects[name][0])

    def following(self, version: int) -> Change | None:
        """The first change behind a version."""
        at = bisect.bisect_right(self.log, version, key=itemgetter(0))
        return self.log[at] if at < len(self.log) else None

    def copy(self) -> Truth:
        return Truth(self.version, dict(self.objects), list(self.log))

    def _note(self, verb: str, name: str, uid: str) -> None:
        self.log.append((self.version, verb, name, uid))
        if verb == "deleted":
            del self.objects[name]
        else:
            self.objects[name] = (uid, self.version)


@dataclass
class Reader:
    """A watch: what its events descend from, and how far it has read."""

    source: Source
    at: int


class Watcher:
    """One replica: lists, watches, publishes; holds nothing but its positions."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # W24: the watch of before, until it has passed the list.
        self._older: Reader | None = None
        self._is_waiting = False
        self.list_again()

    def restart(self) -> None:
        """From the shared checkpoint, mostly; sometimes it is lost (W5)."""
        checkpoint = self._run.checkpoint
        if not checkpoint or checkpoint[0].incarnation != self._run.incarnation:
            self.list_again()
            return
        self._source, self._at = checkpoint
        self._todo: list[Event | EpochEnd] = []
        self._older = Reader(*checkpoint) if self._is_waiting else None

    def ask_for_list(self) -> None:
        """A list that waits for its grant: the oldest watch that stands goes on (W24)."""
        if self._source.incarnation != self._run.incarnation:
            return
        self._older = self._older or Reader(self._source, self._at)
        self._is_waiting = True

    def list_again(self) -> None:
        """The watch is lost: the list alone takes its place."""
        self._older = None
        self._list()

    def _list(self) -> None:
        run = self._run
        self._is_waiting = False
        run.epochs += 1
        self._source = Source(
            resource=run.resource,
            incarnation=run.incarnation,
            rank=(run.truth.version, run.epochs),
        )
        self._at = self._listed_at = run.truth.version
        objects = run.truth.objects.items()
        listed = [self._source.listed(name, rv, uid=uid) for name, (uid, rv) in objects]
        run.dice.shuffle(listed)
        self._todo = [*listed, self._source.end(len(listed))]

    def audit(self) -> None:
        """Tell what the API server has now; a restore may not be noticed yet (W12, W18)."""
        run = self._run
        run.audits += 1
        run.publish(self._source.audit(run.truth.version, run.audits, run.truth.objects))

    def step(self) -> None:
        dice = self._run.dice
        if self._source.incarnation != self._run.incarnation:
            if dice.random() < 0.3:  # it has not noticed the restore yet; its watch is silent
                self.list_again()
            return
        for _ in range(dice.randrange(1, 6)):
            if self._is_waiting and dice.random() < 0.2:
                self._list()
            elif self._older is not None and (self._is_waiting or dice.random() < 0.5):
                self._watch_older(self._older)
            elif self._todo and dice.random() < 0.7:
                self._run.publish(self._todo.pop(0))
                if not self._todo:
                    self._save()
            else:
                self._watch()

    def _watch_older(self, older: Reader) -> None:
        """It ends when it has passed the list; the newer watch tells the rest."""
        following = self._run.truth.following(older.at)
        is_last = following is None or following[0] > self._listed_at
        if is_last and not self._is_waiting:
            self._older = None
        elif following is not None:
            self._publish_change(older.source, following)
            older.at = following[0]

    def _publish_change(self, source: Source, change: Change) -> None:
        version, verb, name, uid = change
        self._run.publish(source.event(verb, name, version, uid=uid))

    def _watch(self) -> None:
        following = self._run.truth.following(self._at)
        if following is None:
            return
        self._publish_change(self._source, following)
        self._at = following[0]
        if not self._todo and self._run.dice.random() < 0.5:  # W4: not before the epoch's end
            self._save()

    def _save(self) -> None:
        checkpoint = self._run.checkpoint
        at = min(self._at, self._older.at) if self._older is not None else self._at
        if checkpoint is None or (checkpoint[0].incarnation, checkpoint[1]) < (
            self._source.incarnation,
            at,
        ):
            self._run.checkpoint = (self._source, at)


class Run:
    """One random history.

    Args:
        seed: of its dice.
        is_gapless: whether watches stand: lists are only asked for, and nothing is lost (W24).

    Attributes:
        false_deletes: deletions that a sweep published of objects that were alive.
    """

    def __init__(self, seed: int, *, is_gapless: bool = False) -> None:
        self.dice = random.Random(seed)
        self.resource = f"p{seed}"
        self.truth = Truth()
        self.incarnation = 1
        self.epochs = 0
        self.audits = 0
        self.checkpoint: tuple[Source, int] | None = None
        self.false_deletes: list[str] = []
        self._uids = 0
        self._is_gapless = is_gapless
        self._loss = 0.0 if is_gapless else self.dice.choice((0.0, 0.0, 0.02))
        self._bus: list[Message] = []
        self._queue: list[Message] = []
        for _ in range(8):
            self._change()
        self._backup = self.truth.copy()
        self._began_at = self.truth.version
        # Alone a watcher has nobody who tells what it does not.
        self._watchers = [Watcher(self) for _ in range(1 if is_gapless else 2)]

    def publish(self, message: Message) -> None:
        self._bus.append(message)
        if self.dice.random() >= self._loss:
            self._queue.append(message)

    def unseen(self) -> list[Change]:
        """The deletions that a subscriber who knows nothing of epochs has not received."""
        received = {(m.name, m.resource_version) for m in self._bus if is_deletion(m)}
        return [
            change
            for change in self.truth.log
            if change[1] == "deleted"
            and change[0] > self._began_at
            and (change[2], str(change[0])) not in received
        ]

    def play(self, steps: int) -> Play:
        for _ in range(steps):
            yield from self._step()
        # Without a loss and a restore the watches alone lead to the truth, as in a healthy cluster.
        if self._loss or self.incarnation > 1 or self.dice.random() < 0.3:
            self._loss = 0.0
            # A restore may be unnoticed still; W20 then asks for an epoch of the newest one.
            for watcher in self._watchers:
                self._list_again(watcher)
        for _ in range(60):
            for watcher in self._watchers:
                watcher.step()
        while self._queue:
            yield from self._deliver()
        yield ("collect", None)
        for message in self.dice.sample(self._bus, min(60, len(self._bus))):
            yield from self._hand_over(message)  # the old bus once more, after the collection
        while self._queue:
            yield from self._deliver()

    def _step(self) -> Play:
        dice, chance = self.dice, self.dice.random()
        if chance < 0.22:
            self._change()
        elif chance < 0.48:
            dice.choice(self._watchers).step()
        elif chance < 0.93:
            yield from self._deliver()
        elif chance < 0.95:
            self._restart(dice.choice(self._watchers))
        elif chance < 0.96:
            self._list_again(dice.choice(self._watchers))
        elif chance < 0.965 and not self._is_gapless:
            self._restore()
        elif chance < 0.972:
            dice.choice(self._watchers).audit()
        elif chance < 0.975:
            yield ("evaluate", None)
        elif chance < 0.985 and self._bus:
            yield from self._hand_over(dice.choice(self._bus))  # a zombie, or a very late repeat
        else:
            yield ("collect", None)

    def _restart(self, watcher: Watcher) -> None:
        if self.checkpoint is not None or not self._is_gapless:
            watcher.restart()

    def _list_again(self, watcher: Watcher) -> None:
        if self._is_gapless or self.dice.random() < 0.5:
            watcher.ask_for_list()
        else:
            watcher.list_again()

    def _change(self) -> None:
        self._uids += 1
        self.truth.change(self.dice, f"u{self._uids}")

    def _restore(self) -> None:
        """etcd from a backup: lower versions come again with other content (W12, W23)."""
        self.truth, self._backup = self._backup.copy(), self.truth.copy()
        self.incarnation += 1
        self._watchers[0].list_again()

    def _deliver(self) -> Play:
        if not self._queue:
            return
        at = self.dice.randrange(min(len(self._queue), self.dice.choice((1, 3, 15))))
        message = self._queue[at]
        if self.dice.random() < 0.9:
            self._queue.pop(at)
        yield from self._hand_over(message)

    def _hand_over(self, message: Message) -> Play:
        """Apply one message; a completed epoch is swept at once, as the projector does."""
        if isinstance(message, AuditPage):
            yield ("audit", message)
            return
        kind = "apply" if isinstance(message, Event) else "end"
        if not (yield (kind, message)):
            return
        source = Source(
            resource=self.resource,
            incarnation=message.incarnation.number,
            rank=(message.epoch.resource_version, message.epoch.id),
        )
        for name, uid in (yield ("sweep", message)):
            is_today = source.incarnation == self.incarnation  # a restore may not be noticed yet
            if is_today and self.truth.objects.get(name, ("",))[0] == uid:
                self.false_deletes.append(name)
            version = message.epoch.resource_version
            body = body_of(name, version)
            self.publish(
                source.event("deleted", name, version, uid=uid, body=body, final_state_unknown=True)
            )
