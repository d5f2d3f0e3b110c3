"""The views of a live run: widget, terminal, static HTML."""
