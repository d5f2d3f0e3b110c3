"""Device samplers: what a worker's CPU or GPU is doing, one module a source."""
