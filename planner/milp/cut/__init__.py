"""Prices of the cuts of one configuration: `problem.py` its time, `stage_costs.py` a worker's bytes, for many cuts at once."""
