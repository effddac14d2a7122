"""Loops over users: NumPy over whole cohorts; `compiled/` has the same loops for Numba."""
