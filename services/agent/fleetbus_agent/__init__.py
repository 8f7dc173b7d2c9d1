"""The agent: lets the hub call the API server of a cluster that the hub cannot reach.

It runs in that cluster and connects to NATS from there. Each call is one task: it collects the
request, asks the local policy, makes sure that the API server is that of the cluster that is meant,
sends the request with the agent's own credentials, and passes the answer on, never more of it than
the caller takes. The owner of the cluster decides what the hub may do there, by the rights of the
agent's account and by the policy, and finds each call in the log. It knows neither Redis nor other
clusters; the callers' side is `fleetbus.agent_calls`.
"""
