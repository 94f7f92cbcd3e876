"""Measurements of the engine: scripts with recorded results, never tests."""
