from __future__ import annotations

import pkgutil
import subprocess
import sys

import ghostkv.engine
import ghostkv.kv


def test_engine_and_kv_need_no_torch() -> None:
    names = [m.name for p in (ghostkv.engine, ghostkv.kv) for m in pkgutil.iter_modules(p.__path__, f"{p.__name__}.")]
    assert "ghostkv.engine.service" in names and "ghostkv.kv.pool" in names
    code = f"import sys; sys.modules['torch'] = sys.modules['numba'] = None\nimport {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
