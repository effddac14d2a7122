"""One configured run, from wiring to result, and sweeps of runs."""
