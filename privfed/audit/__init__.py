"""Put a privacy claim to the test: black-box audit, one-run audit, replay."""
