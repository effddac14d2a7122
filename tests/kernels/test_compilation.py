"""Compiling only where it pays; machine code on disk is that of today's sources."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import privfed
from privfed.foundation import compilation, numba_cache
from privfed.foundation.compilation import DropIn, Job, choosing, expect
from privfed.foundation.errors import ConfigError
from privfed.foundation.numba_cache import SHARED

PACKAGE = Path(privfed.__file__).parent
FILES = [
    path
    for folder in ("privfed", "clients", "strategies")
    for path in sorted((PACKAGE.parent / folder).rglob("*.py"))
]
SMALL, LARGE = Job(100, 10, 50, 2, 30), Job(10**7, 10, 50, 2, 30)


def is_compiled(function):
    return any("compiled" in ast.unparse(each) for each in function.decorator_list)


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
    assert set().union(*(sources(path) for path in FILES)) == set(SHARED)


def test_only_modules_of_compiled_loops_have_compiled_functions():
    holders = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and is_compiled(node)
    }
    assert all(
        name.startswith("privfed/kernels/compiled/") or name == "privfed/privacy/exact_loops.py"
        for name in holders
    )


def run(code, folder, **env):
    """Standard output and error of Python code in a process of its own."""
    full = {key: value for key, value in os.environ.items() if key != "PRIVFED_COMPILE"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(
        line, cwd=folder, env={**full, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


ASK = (
    "from privfed.kernels.compiled.gradient_sums import _clip_factor as f; "
    "print(f(2.0, 1.0), sum(f.stats.cache_hits.values()))"
)


def asked(folder):
    out, _ = run(ASK, folder, PYTHONPATH=str(folder), NUMBA_CACHE_DIR=str(folder / "cache"))
    factor, hits = out.split()
    return float(factor), int(hits)


def test_a_constant_of_another_file_is_compiled_anew(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "privfed", ignore=shutil.ignore_patterns("__pycache__"))
    mechanisms = tmp_path / "privfed/privacy/summation.py"
    text = mechanisms.read_text(encoding="utf-8")
    assert asked(tmp_path) == (pytest.approx(0.5, rel=1e-5), 0)
    assert asked(tmp_path) == (pytest.approx(0.5, rel=1e-5), 1), "kept"
    mechanisms.write_text(text.replace("SLACK = 1.0 - 1e-6", "SLACK = 0.5"), encoding="utf-8")
    assert asked(tmp_path) == (0.25, 0)


@pytest.fixture
def drop_in(monkeypatch, tmp_path):
    """Loops that take 2 s to compile and save a microsecond per user and round."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRIVFED_COMPILE", raising=False)
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    monkeypatch.setattr(compilation, "_job", None)
    monkeypatch.setattr(compilation, "_known", [])
    monkeypatch.setattr(compilation, "_announced", False)
    with choosing("auto"):
        yield DropIn(
            "privfed.kernels.compiled.batches", 2.0, lambda job: 1e-6 * job.users * job.rounds
        )


def test_small_jobs_do_not_compile_and_large_ones_do_with_one_line(drop_in, capsys):
    assert drop_in.chosen() is None, "nothing is known about the job"
    expect(SMALL)
    assert drop_in.chosen() is None and not drop_in.kept()
    expect(LARGE)
    assert drop_in.chosen().__name__ == drop_in.module and drop_in.kept()
    line = "privfed: compiling the kernels for this machine, once: about 2 s\n"
    assert capsys.readouterr() == ("", line)


def test_machine_code_that_is_there_is_used_where_loading_it_pays(drop_in, capsys):
    expect(Job(1000, 10, 50, 2, 1000))  # saves a second: more than loading, less than compiling
    assert drop_in.chosen() is None
    numba_cache.keep(numba_cache.cache_folder(), drop_in.source, drop_in.variant)
    assert drop_in.chosen() is None, "a decision holds for the whole process"
    with choosing("auto"):
        assert drop_in.chosen() is not None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("PRIVFED_COMPILE", "never", "never"),
        ("PRIVFED_COMPILE", "always", "always"),
        ("PRIVFED_COMPILE", "", "auto"),
        ("NUMBA_DISABLE_JIT", "1", "never"),
        ("NUMBA_DISABLE_JIT", "0", "auto"),
    ],
)
def test_the_environment_decides(name, value, wanted, monkeypatch):
    for each in ("PRIVFED_COMPILE", "NUMBA_DISABLE_JIT"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    assert compilation.mode() == wanted


def test_an_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv("PRIVFED_COMPILE", "sometimes")
    with pytest.raises(ConfigError, match="auto, always, never"):
        compilation.mode()


def test_without_numba_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("PRIVFED_COMPILE", "always")
    monkeypatch.setattr(numba_cache, "_machine", lambda: "")
    assert compilation.mode() == "never"


SMALL_RUN = """
import sys
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
small = ["data.n=300", "data.d=8", "data.m=6", "rounds=2"]
for more in (["algo=fedrep"], ["algo=centaur"], ["algo=expmech", "algo.candidates=20"]):
    outcome = Experiment(compose([*small, *more])).run()
    print(outcome.result["metrics"]["mse"])
print("numba" in sys.modules)
"""


@pytest.mark.slow
def test_small_runs_do_not_import_numba_and_give_the_numbers_of_compiled_ones(tmp_path):
    plain, said = run(SMALL_RUN, PACKAGE.parent, NUMBA_CACHE_DIR=str(tmp_path))
    off, _ = run(SMALL_RUN, PACKAGE.parent, NUMBA_DISABLE_JIT="1")
    compiled, told = run(SMALL_RUN, PACKAGE.parent, PRIVFED_COMPILE="always")
    assert plain == off and plain.split()[-1] == "False" and compiled.split()[-1] == "True"
    for a, b in zip(plain.split()[:-1], compiled.split()[:-1], strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-10)
    assert "compiling" not in said and told.count("compiling") <= 1


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A read-only installation without a home; the set of folders that can be written to."""
    writable = {tmp_path}
    for name in ("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    really = numba_cache._writable
    monkeypatch.setattr(
        numba_cache,
        "_writable",
        lambda folder: any(folder.is_relative_to(each) for each in writable) and really(folder),
    )
    monkeypatch.setattr(numba_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    return writable


def test_a_read_only_installation_keeps_machine_code_in_a_private_folder(bare, tmp_path):
    folder = numba_cache.cache_folder()
    assert folder == tmp_path / f"privfed-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_others_could_have_put_there_is_not_run(bare, tmp_path):
    own = tmp_path / f"privfed-{os.getuid()}"
    own.mkdir(mode=0o755)
    own.chmod(0o777)
    assert numba_cache.cache_folder() is None
    own.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    assert numba_cache.cache_folder() is None


def test_a_home_that_can_be_written_to_comes_first(bare, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert numba_cache.cache_folder() == tmp_path / "home/.cache/privfed"
    bare.clear()
    assert numba_cache.cache_folder() is None


def test_nowhere_to_keep_machine_code_is_no_error(bare, drop_in, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    bare.clear()
    expect(LARGE)
    assert drop_in.chosen() is not None and not drop_in.kept()
    function = compilation.compiled(lambda x: x + 1.0)
    assert function(1.0) == 2.0
