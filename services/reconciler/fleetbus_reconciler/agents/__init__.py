"""Which agents may log in to NATS: their registrations, and their accounts."""
