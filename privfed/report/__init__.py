"""Presentation of a run: files, console, pages, loggers."""
