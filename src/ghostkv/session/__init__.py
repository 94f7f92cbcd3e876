"""Sessions: an answer as a chain of engine requests, above any backend."""
