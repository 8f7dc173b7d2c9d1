"""What is behind a Service, as Endpoints and as EndpointSlices."""
