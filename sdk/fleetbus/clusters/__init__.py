"""Which clusters there are: providers yield the desired set, the registry engages them."""
