"""What a person sees of a run: files, console, pages, loggers."""
