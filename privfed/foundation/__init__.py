"""Basics for every room: errors, checks, files, seeded randomness, linear algebra."""
