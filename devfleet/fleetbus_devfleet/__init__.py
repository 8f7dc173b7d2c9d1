"""A whole fleet on one machine: emulated API servers, real NATS, real Valkey, the services."""
