"""The figures that scripts/reproduce.py can make, one module per paper."""
