"""The vocabulary of generated clusters: what teams call their applications, images and settings."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

Item = TypeVar("Item")


class Zipf(Generic[Item]):
    """Chooses among items so that few are chosen often and most seldom.

    Args:
        items: The most frequent first.
        exponent: How steep; the item at place n has the weight 1 / n ** exponent.
    """

    def __init__(self, items: Sequence[Item], exponent: float = 1.0) -> None:
        self._items = items
        weights = (1 / place**exponent for place in range(1, len(items) + 1))
        self._cumulative = list(itertools.accumulate(weights))

    def pick(self, random: Random) -> Item:
        """One of the items."""
        return random.choices(self._items, cum_weights=self._cumulative)[0]


SUBJECTS = (
    *("checkout", "payments", "orders", "catalog", "search", "inventory", "accounts", "billing"),
    *("shipping", "pricing", "reviews", "recommendations", "notifications", "identity", "ledger"),
    *("fraud", "loyalty", "media", "sessions", "profiles", "audit", "reports", "analytics"),
    *("events", "imports", "exports", "mail", "chat", "tickets", "docs", "images", "video"),
    *("geo", "routing", "telemetry", "alerts", "feature-flags", "experiments", "subscriptions"),
)
ROLES = (
    *("api", "worker", "web", "gateway", "consumer", "scheduler", "indexer", "proxy", "backend"),
    *("frontend", "sync", "processor", "admin", "ingest", "bridge", "controller", "relay"),
)
STORES = ("postgres", "redis", "kafka", "elasticsearch", "rabbitmq", "mongodb", "cassandra", "etcd")
AGENTS = ("node-exporter", "fluent-bit", "cilium", "kube-proxy", "csi-node", "falco", "otel-agent")
CHORES = ("backup", "cleanup", "report", "reindex", "rotate-keys", "sync-users", "vacuum")
STAGES = ("prod", "staging", "dev", "test", "preview", "load", "sandbox")
TEAMS = ("core", "growth", "platform", "data", "mobile", "risk", "search", "infra", "ml", "sre")
REGISTRIES = (
    "registry.example.com",
    "ghcr.io/acme",
    "eu.gcr.io/acme-prod",
    "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
    "quay.io/acme",
)
SIDECARS = (
    ("istio-proxy", "docker.io/istio/proxyv2:1.22.3"),
    ("vault-agent", "hashicorp/vault:1.17.2"),
    ("log-shipper", "fluent/fluent-bit:3.1.4"),
    ("cloudsql-proxy", "gcr.io/cloudsql-docker/gce-proxy:1.33.2"),
    ("metrics", "quay.io/prometheus/statsd-exporter:v0.26.1"),
)
# Names of settings and what they are usually set to.
SETTINGS = (
    ("LOG_LEVEL", ("info", "debug", "warning")),
    ("HTTP_PORT", ("8080", "8443", "3000")),
    ("DATABASE_HOST", ("postgres.data.svc.cluster.local", "aurora.example.com")),
    ("DATABASE_NAME", ("orders", "app", "main")),
    ("CACHE_URL", ("redis://redis-master.cache.svc:6379/0", "redis://valkey.cache.svc:6379/1")),
    ("KAFKA_BROKERS", ("kafka-0.kafka.messaging.svc:9092,kafka-1.kafka.messaging.svc:9092",)),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", ("http://otel-collector.observability.svc:4317",)),
    ("REQUEST_TIMEOUT", ("30s", "5s", "500ms")),
    ("MAX_CONNECTIONS", ("50", "250", "1000")),
    ("FEATURE_NEW_CHECKOUT", ("true", "false")),
    ("REGION", ("eu-west-1", "us-east-1", "ap-south-1")),
    ("S3_BUCKET", ("acme-prod-assets", "acme-uploads")),
    ("GOMAXPROCS", ("1", "2", "4")),
    ("JAVA_TOOL_OPTIONS", ("-XX:MaxRAMPercentage=75.0 -Xss512k",)),
    ("TZ", ("UTC", "Europe/Berlin")),
    ("SENTRY_ENVIRONMENT", ("production", "staging")),
    ("RATE_LIMIT", ("100/s", "10/s")),
    ("WORKER_CONCURRENCY", ("4", "8", "16")),
)
ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
MACHINES = ("m6i.2xlarge", "m6i.4xlarge", "c6i.2xlarge", "r6i.2xlarge", "g5.xlarge")
EVENTS = (
    ("Normal", "Scheduled", "Successfully assigned the pod to a node"),
    ("Normal", "Pulled", "Container image already present on machine"),
    ("Normal", "Started", "Started container"),
    ("Normal", "Killing", "Stopping container"),
    ("Warning", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503"),
    ("Warning", "BackOff", "Back-off restarting failed container"),
    ("Warning", "FailedMount", "MountVolume.SetUp failed: timed out waiting for the condition"),
)
