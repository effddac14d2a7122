"""The user side: one file an algorithm, under the same name as its strategy."""
