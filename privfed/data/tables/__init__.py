"""Tables of rows by user."""
