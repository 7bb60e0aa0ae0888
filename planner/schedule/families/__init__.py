"""A file for each family of schedules; `registry.py` lists them by name."""
