"""IPython magics: parse, build a spec, call the engine."""
