"""Corrections of library defects on the way to NATS, one module per defect."""
