"""`python -m ghostkv`."""

from __future__ import annotations

from ghostkv.cli import main

if __name__ == "__main__":
    main()
