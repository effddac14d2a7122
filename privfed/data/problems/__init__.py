"""Synthetic problems of the papers, whose true solutions are known."""
