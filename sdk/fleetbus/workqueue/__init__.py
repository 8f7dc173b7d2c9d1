"""The queue of requests: client-go's workqueue across processes, with leases and fencing tokens.

`queue` is the contract; `RedisQueue` and `MemoryQueue` implement it and pass the same tests.
`Heartbeat` extends the leases of a process from a thread. Every transition in Redis is one Lua
script; `lua/shared/state.lua` holds what the scripts share. Rules Q1 to Q13.

Parts of a queue, as `keys.queue(controller, part)`. All share the hash tag `{q:<controller>}`
(rule P16), none has a time to live, and an empty queue has no keys (rule Q2) but the notes that
runs left. An *item* is `<cluster>/<namespace>/<name>`; a *band* is a priority, 0 to 2; a *flow* is
what takes turns within a band; times are microseconds of the server's clock (rule Q3).

| part | type | content |
|---|---|---|
| `dirty` | HASH | item → band, time it became dirty |
| `ready:<band>:<flow>` | ZSET | item by that time: what may be taken |
| `turns:<band>` | ZSET | flow by its virtual time: who is next (Q9); only flows with items |
| `credits` | HASH | band → runs it has in credit with the bands above it (Q10) |
| `delayed` | ZSET | item by due time (Q8) |
| `triggers` | HASH | item → newest trigger of a dirty or delayed item (P10) |
| `processing` | HASH | item → fence, band, time it became dirty, trace, trigger |
| `leases` | ZSET | item by end of its lease |
| `takes` | HASH | request token of a take that was repeated → when, while leases exist (Q11) |
| `traces` | HASH | item → traceparent of a dirty or delayed item |
| `notes` | HASH | item → what its last run left for the next one (Q12) |
| `noted` | ZSET | item by the time of its note: old ones are dropped |
| `attempts` | HASH | item → failures since the last success (Q7) |
| `suspects` | HASH | item → time the reaper first saw its lease expired (Q6) |
| `reclaims` | HASH | item → times quarantined, times of recent reclaims (Q7) |
| `quarantine` | ZSET | item by the time it is tried again (Q7) |
| `breakers` | ZSET | cluster by the time its next probe may go, see `state.lua` (Q9) |
| `outages` | HASH | cluster → failures in a row, times opened, fence of the probe (Q9) |
| `causes` | HASH | item → cluster whose change caused it, if the item names another one (Q9) |
| `clock` | HASH | `at`, `ahead`, `generation`: see below; only while something waits for a time |
| `liveness` | HASH | `hold`, `run`, `at_capacity`; while leases exist |
| `checkpoint:<durable>` | HASH | up to where the queue has the effects of a durable (P11) |
| `replay` | STRING | the process that reads the stream again for the queue; it expires (P11) |
| `unsynced` | ZSET | `<cluster> <resource> <item>` by time: used before it was synced (P18) |
| `notify` | channel | an empty message when something becomes ready, or due earlier |

A queue's time never goes back (Q8). In `clock`, `at` is the time of the last script; `ahead` is by
how much the queue's time is ahead of the server's clock, because that clock went back. So what is
delayed, quarantined or behind an open breaker waits as long as intended, and no score is rewritten.

When that time jumps while leases exist, or `run` changes, the server's run id, owners may have been
unable to extend their leases: nothing is reaped until `hold` (Q6). `generation` is part of every
fence (Q4): the first lease of a store without one starts a new generation, so a store that was
emptied never issues an old fence again. `at_capacity` is set when a taker left ready items behind
because it had no capacity for their clusters.

Fairness (Q9): a turn advances a flow's virtual time by 1, or by 1 divided by the weight of its
cluster. A cluster for which a taker has no capacity is passed over and loses its turns. While a
cluster's breaker is open its items stay ready but take no turns: one item at a time is handed out
as a probe, after growing pauses, and the first success closes the breaker. An outage is forgotten
at the first success, and every failure it counts belongs to an item that will run again, so it
never outlives its items.
"""

from fleetbus.errors import LeaseLostError
from fleetbus.workqueue.errors import (
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
