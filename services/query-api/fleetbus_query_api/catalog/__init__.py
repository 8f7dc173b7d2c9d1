"""The clusters and types of resources in the fleet, and who may know of them (rule A2)."""
