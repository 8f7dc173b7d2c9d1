"""Votes on a gate of a rollout, as a pipeline does; knows NATS, nothing of fleetbus.

python vote.py SUBJECT pass|fail [REASON]
"""

import asyncio
import json
import os
import sys

import nats

ADDRESS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
INBOX = os.environ.get("VOTER_INBOX_PREFIX", "_INBOX")  # the chart's users may read only theirs


async def vote(address: str, subject: str, chosen: str, reason: str = ""):
    body = {"vote": chosen, "reason": reason}
    client = await nats.connect(address, inbox_prefix=INBOX.encode())
    try:
        # A request, not a publication: the stream answers when it has stored the vote.
        answer = await client.request(subject, json.dumps(body).encode(), timeout=5)
    finally:
        await client.close()
    stored = json.loads(answer.data)
    if "error" in stored:
        raise SystemExit(f"the vote was not stored: {stored['error']}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[2] not in ("pass", "fail"):
        raise SystemExit(__doc__)
    asyncio.run(vote(ADDRESS, *sys.argv[1:]))
