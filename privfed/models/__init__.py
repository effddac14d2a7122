"""Models: a shared representation, and one private head per user."""
