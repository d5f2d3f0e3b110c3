"""From a cell or function to a run: spec, capture, preflight, supervisor, run."""
