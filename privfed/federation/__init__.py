"""Who takes part, and what stays with each participant."""
