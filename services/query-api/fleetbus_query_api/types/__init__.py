"""The types of resources that the fleet serves, and who may know of them (rule A2)."""
