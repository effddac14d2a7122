"""The figures that scripts/reproduce.py can make, one module a paper."""
