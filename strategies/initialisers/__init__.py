"""The server side of initialisers: first phases that algorithms share."""
