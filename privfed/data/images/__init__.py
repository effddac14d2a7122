"""Pictures of public collections, dealt to simulated users."""
