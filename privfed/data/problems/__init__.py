"""The papers' synthetic problems."""
