"""NATS: connections, the stream and who reads it, publishing, and what was lost of it."""
