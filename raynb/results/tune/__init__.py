"""What is left of a search: its trials, tables and plots."""
