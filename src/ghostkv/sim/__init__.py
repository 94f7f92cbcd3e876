"""The production scheduler under a virtual clock: only runner and clock are others, and sessions are tokens counted."""
