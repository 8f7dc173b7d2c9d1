"""The queue of requests: client-go semantics across processes, with leases and fences."""
