"""From the command line to one resolved configuration."""
