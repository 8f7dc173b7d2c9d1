"""Clusters full of objects that look real, from a seed, and the changes that go on in them.

    fill(cluster, objects=10_000, seed=7)           # the same seed, the same names and uids
    churn = Churn(cluster, seed=7)
    churn.run(1_000)                                # a thousand writes, at once
    await churn.drive(per_second=50)                # until cancelled

Objects go straight into the store as they are, with status, owners and managedFields, each under
a revision of its own; watches see them come. The simulated controllers find nothing to do.
"""

from fleetbus_emulator.generate.changes import Verb, Write
from fleetbus_emulator.generate.churn import Churn, Mix
from fleetbus_emulator.generate.fill import fill, population_for
from fleetbus_emulator.generate.objects.population import Population

__all__ = ["Churn", "Mix", "Population", "Verb", "Write", "fill", "population_for"]
