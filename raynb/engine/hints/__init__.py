"""Hints: what is wrong with a run and what to do about it, each a pure function of its digest."""
