"""Request and response bodies: JSON and YAML as Go reads them, protobuf, content negotiation."""
