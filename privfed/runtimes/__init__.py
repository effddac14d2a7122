"""How a strategy and its clients are executed; nothing about what they compute."""
