"""What is left of a run: RunResult and its static rendering."""
