"""Who takes part in a federation, and what stays with each participant."""
