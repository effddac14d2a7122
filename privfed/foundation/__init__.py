"""What every room may use: errors, checks, files, seeded randomness, linear algebra."""
