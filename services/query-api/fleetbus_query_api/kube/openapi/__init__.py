"""OpenAPI of the types that are served, as much as `kubectl explain` reads."""
