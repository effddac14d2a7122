"""Personal models of real and made-up tables beside what they have to beat."""
