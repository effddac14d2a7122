"""Tables whose rows belong to users: files, rows in memory, and rows of remote clients."""
