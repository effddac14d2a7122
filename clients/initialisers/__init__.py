"""The user side of initialisers."""
