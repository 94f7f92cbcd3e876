"""Engines behind one protocol: what the continuity loop runs on."""
