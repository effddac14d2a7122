"""Loops over users: NumPy over whole cohorts here, the same loops for a compiler in `compiled/`."""
