"""Models: a shared representation and a private head a user."""
