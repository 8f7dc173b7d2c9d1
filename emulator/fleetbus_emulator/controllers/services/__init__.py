"""The backends of a Service, as Endpoints and as EndpointSlices."""
