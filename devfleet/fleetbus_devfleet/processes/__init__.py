"""Child processes that never outlive us, and the real NATS and Valkey among them."""
