"""The callers' side of requests to an API server through an agent in its cluster.

`AgentCalls` is one per process: it has the process' only subscription for answers, and hands each
frame to its call. `AgentTransport` is the way of one client: in place of HTTP it opens a call, and
its response is read like any other, with the same errors. The other side is `services/agent`; the
frames between them are in `fleetbus_proto.calls`.

A request that was sent and has no answer has an unknown outcome, exactly as with HTTP. A request is
never kept for a connection that is down: it is refused, and nothing was sent.
"""
