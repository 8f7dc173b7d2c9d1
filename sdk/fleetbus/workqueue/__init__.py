"""The queue of requests: client-go semantics across processes, with leases and fences.

`queue` is the contract, `RedisQueue` and `MemoryQueue` keep it and pass the same tests, `Heartbeat`
keeps the leases of a process alive from a thread. Every transition in Redis is one Lua script;
`state.lua` holds what they share. Rules Q1 to Q13.

Parts of a queue, as `keys.queue(controller, part)`; all share the hash tag `{q:<controller>}`
(P16), none has a time to live, and an empty queue has no keys (Q2) but the notes that runs left.
An *item* is `<cluster>/<namespace>/<name>`; a *band* is a priority, 0 to 2; times are microseconds
of the server's clock (Q3).

| part | type | content |
|---|---|---|
| `dirty` | HASH | item → band, time it became dirty |
| `ready:<band>:<cluster>` | ZSET | item by that time: what may be taken |
| `turns:<band>` | ZSET | cluster by its virtual time: who is next (Q9); only clusters with items |
| `credits` | HASH | band → runs it is owed by the bands above it (Q10) |
| `delayed` | ZSET | item by due time (Q8) |
| `triggers` | HASH | item → newest trigger of a dirty or delayed item (P10) |
| `processing` | HASH | item → fence, band, time it became dirty, trace, trigger |
| `leases` | ZSET | item by end of its lease |
| `takes` | HASH | request token → leases still held under it (Q11) |
| `traces` | HASH | item → traceparent of a dirty or delayed item |
| `notes` | HASH | item → what its last run left for the next one (Q12) |
| `noted` | ZSET | item by the time of its note: old ones are dropped |
| `attempts` | HASH | item → failures since the last success (Q7) |
| `suspects` | HASH | item → time the reaper first saw its lease expired (Q6) |
| `reclaims` | HASH | item → times quarantined, times of recent reclaims (Q7) |
| `quarantine` | ZSET | item by the time it is tried again (Q7) |
| `breakers` | ZSET | cluster by the time its next probe may go, see `state.lua` (Q9) |
| `outages` | HASH | cluster → failures in a row, times opened, fence of the probe (Q9) |
| `causes` | HASH | item → cluster whose change caused it, if it names another one (Q9) |
| `clock` | HASH | `at`, `ahead`: see below; only while something waits for a time |
| `pulse` | HASH | `at`, `hold`, `run`, `generation`, `hungry`: see below; only while leases exist |
| `wake` | channel | an empty message when something becomes ready, or due earlier |

A queue's time never goes back (Q8): in `clock`, `at` is the time of the last script, and `ahead` by
how much the queue's time is ahead of the server's clock, because that went back. So what is
delayed, quarantined or broken open waits as long as it was to wait, and nothing is rewritten.

In `pulse`, `at` is the time of the last script and `run` the server's run id: a jump of either sets
`hold`, until when nothing is reaped (Q6). `generation` is part of every fence (Q4): the first lease
of a store that has none begins one, so an emptied store never continues the old one.

`hungry` says that a taker had no room for what was ready.

Fairness (Q9): a turn moves a cluster's virtual time by 1, or by one part of its weight. A cluster
for which a taker has no room is passed over, and its turns are lost. One whose breaker is open is
in no round at all, while its items stay ready: one of them at a time is a probe, after pauses that
grow, and its success lets all of them back. An outage is forgotten at the first success, and every
failure it counts belongs to a key that is still to be run, so it never outlives the items.
"""

from fleetbus.workqueue.errors import (
    LeaseLostError,
    QueueClosedError,
    QueueUnavailableError,
    WorkqueueError,
)
from fleetbus.workqueue.heartbeat import Heartbeat, connect_blocking
from fleetbus.workqueue.memory import MemoryQueue
from fleetbus.workqueue.queue import (
    NOTE_BYTES,
    Add,
    Backoff,
    Breaker,
    Lease,
    Priority,
    Processing,
    Quarantined,
    Queue,
    QueuePolicy,
    Reaped,
    Stats,
    decode_trigger,
    encode_trigger,
)
from fleetbus.workqueue.redis import RedisQueue

__all__ = [
    "NOTE_BYTES",
    "Add",
    "Backoff",
    "Breaker",
    "Heartbeat",
    "Lease",
    "LeaseLostError",
    "MemoryQueue",
    "Priority",
    "Processing",
    "Quarantined",
    "Queue",
    "QueueClosedError",
    "QueuePolicy",
    "QueueUnavailableError",
    "Reaped",
    "RedisQueue",
    "Stats",
    "WorkqueueError",
    "connect_blocking",
    "decode_trigger",
    "encode_trigger",
]
