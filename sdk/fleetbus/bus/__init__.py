"""NATS: the connection, publishing, the stream and its consumers, the key-value bucket."""
