"""One configured run, from its wiring to its result, and sweeps of runs."""
