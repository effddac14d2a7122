"""Images of public collections and synthetic images, assigned to simulated users."""
