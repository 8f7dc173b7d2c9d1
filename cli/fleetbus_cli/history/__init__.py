"""Commands about the past of the fleet."""
