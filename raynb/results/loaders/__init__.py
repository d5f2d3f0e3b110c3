"""Loaders: from a checkpoint to weights or a model, without running code that is in it."""

from raynb.results.loaders.base import How, Loader
from raynb.results.loaders.load import checkpoint_of, load_checkpoint

__all__ = ["How", "Loader", "checkpoint_of", "load_checkpoint"]
