"""What an algorithm is written with: phases, a strategy, a client."""
