"""The server side: one file per algorithm, under the same name as its client."""
