"""What runs inside Ray's workers; imports no IPython and no widgets."""
