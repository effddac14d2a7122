"""Compiled loops over users, each with a NumPy twin."""
