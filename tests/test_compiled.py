"""Machine code that is kept on disk is that of today's sources."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import privfed
from privfed.foundation.compilation import SHARED

PACKAGE = Path(privfed.__file__).parent
FILES = [
    path
    for folder in ("privfed", "clients", "strategies")
    for path in sorted((PACKAGE.parent / folder).rglob("*.py"))
]


def is_compiled(function):
    return any(
        "compiled" in ast.unparse(each) or "njit" in ast.unparse(each)
        for each in function.decorator_list
    )


def sources(path):
    """The files of the project that a file's compiled functions have names from."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and is_compiled(node)]
    used = {
        node.id
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
    } - {"compiled"}
    taken = [
        node.module.removeprefix("privfed.")
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        and used & {alias.name for alias in node.names}
        and node.module.startswith("privfed.")
    ]
    return {f"{module.replace('.', '/')}.py" for module in taken}


def test_files_that_compiled_code_has_something_from_are_known():
    needed = {path: sources(path) for path in FILES}
    assert needed[PACKAGE / "kernels/gradient_sums.py"] == set(SHARED)
    assert set().union(*needed.values()) == set(SHARED)


ASK = "from privfed.kernels.gradient_sums import _clip_factor as f; print(f(2.0, 1.0), sum(f.stats.cache_hits.values()))"


def asked(folder):
    env = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    factor, hits = done.stdout.split()
    return float(factor), int(hits)


def test_a_constant_of_another_file_is_compiled_anew(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "privfed", ignore=shutil.ignore_patterns("__pycache__"))
    mechanisms = tmp_path / "privfed/privacy/clipping.py"
    text = mechanisms.read_text(encoding="utf-8")
    assert asked(tmp_path) == (pytest.approx(0.5, rel=1e-5), 0)
    assert asked(tmp_path) == (pytest.approx(0.5, rel=1e-5), 1), "kept"
    mechanisms.write_text(text.replace("SLACK = 1.0 - 1e-6", "SLACK = 0.5"), encoding="utf-8")
    assert asked(tmp_path) == (0.25, 0)
