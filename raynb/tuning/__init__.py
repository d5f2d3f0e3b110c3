"""Searches with Ray Tune: what they are asked to do, and the supervisor that hosts one."""
