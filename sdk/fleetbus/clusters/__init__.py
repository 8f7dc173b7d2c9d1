"""The clusters of the fleet: providers yield the desired set, the registry engages them."""
