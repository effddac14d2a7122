"""How a pair is executed; nothing about what it computes."""
