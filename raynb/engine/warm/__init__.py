"""Warm workers: a group that stays, and its jobs."""
