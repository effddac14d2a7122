"""The server side: one file an algorithm, under the same name as its client."""
