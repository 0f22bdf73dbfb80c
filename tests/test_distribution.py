"""What is built and installed from the tree: contents of the wheel and the sdist, imports, pins.

Behavior of the installed code is tested elsewhere; here only that all of it arrives and what it imports.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

PACKS = sorted(path.parent for path in ROOT.glob("packs/*/pyproject.toml"))

# Top-level folders and what they are called once installed.
PACKAGES = {"pace": "pace", "solver": "pace/solver", "api": "pace/api", "runtime": "pace/runtime"}

# What the core and the solver never import: each belongs to an extra, and most take seconds to load.
WEB = ["fastapi", "httpx", "sqlalchemy", "structlog", "uvicorn"]
FOREIGN = ["google", "horovod", "matplotlib", "torch", *WEB]

IMPORT_ALL = """
import importlib, json, pkgutil, sys

def import_below(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not found.name.startswith(skipped) and not found.name.endswith(".__main__"):
            module = importlib.import_module(found.name)
            files[found.name] = module.__file__
            if found.ispkg:
                import_below(module)

skipped, files = tuple(sys.argv[1:]), {}
import_below(importlib.import_module("pace"))
print(json.dumps({"files": files, "loaded": sorted(name for name in sys.modules if "." not in name)}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Return what the command prints; a failure shows all it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["NUMBA_DISABLE_JIT"] = "1"  # what is imported is not run
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{command[0]} exited {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def import_all(python: Path, cwd: Path, *, skip: list[str]) -> tuple[dict[str, str], set[str]]:
    """Import every module of `pace`; return their files and the top-level modules that this loaded."""
    # -I: neither the working directory nor the environment adds to the path.
    answer = json.loads(run(python, "-I", "-c", IMPORT_ALL, *skip, cwd=cwd))
    return answer["files"], set(answer["loaded"])


def files_in_source(source: Path) -> set[str]:
    """Name every file that a wheel must hold, by its path inside the wheel."""
    return {
        f"{installed}/{path.relative_to(source / folder).as_posix()}"
        for folder, installed in PACKAGES.items()
        for path in (source / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def files_in_wheel(wheel: Path) -> set[str]:
    """Name the files of the wheel, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def build(source: Path, *options: str) -> Path:
    """Build in a copy, since a build leaves folders behind that the next one would pack; return dist/."""
    run(sys.executable, "-m", "build", "--no-isolation", *options, cwd=source)
    return source / "dist"


def required(requirements: Iterable[Requirement]) -> set[str]:
    """Name the distributions that these require, and what those require in turn."""
    names: set[str] = set()
    asked = [each for each in requirements if each.marker is None or each.marker.evaluate()]
    for each in asked:  # it grows
        names.add(canonicalize_name(each.name))
        for line in distribution(each.name).requires or ():
            needed = Requirement(line)
            extras = ("", *each.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                asked += [needed] if needed not in asked else []
    return names


def flat(lines: Iterable[str], extras: Mapping[str, list[str]]) -> Iterator[Requirement]:
    """Yield requirements, with those of the project's own extras in place of the extras."""
    for each in map(Requirement, lines):
        if each.name == "pace-scheduler":
            yield from flat(chain(*(extras[extra] for extra in each.extras)), extras)
        else:
            yield each


def link_distribution(name: str, packages: Path) -> None:
    """Link every file of an installed distribution into another folder of packages."""
    for file in distribution(name).files or ():
        if ".." not in file.parts:  # programs and manual pages
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            (packages / file).symlink_to(Path(str(file.locate())).resolve())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what the build reads, links kept as links."""
    target = tmp_path_factory.mktemp("source")
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, target)
    for folder in PACKAGES:
        shutil.copytree(
            ROOT / folder, target / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return target


@pytest.fixture(scope="module")
def wheel(copy: Path) -> Path:
    """Build the wheel from the tree."""
    [built] = build(copy, "--wheel").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, without torch, into an environment of what it requires; return its folder.

    The distributions that it requires are links to those of this environment. pip finds them there and has
    no index: a requirement that is missing or out of range is an error.
    """
    environment = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(environment, with_pip=False)
    [packages] = environment.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name in required(flat([*project["dependencies"], *extras["api"], *extras["client"]], extras)):
        link_distribution(name, packages)
    python, pins = environment / "bin" / "python", ROOT / "constraints.txt"
    options = ("--disable-pip-version-check", "--no-compile", "--no-index", "-c", pins)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", *options, f"{wheel}[api,client]", cwd=environment)
    return environment


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_holds_every_file_of_the_four_packages(copy: Path, wheel: Path) -> None:
    """No module, marker or data file of the tree is left out of the wheel, and nothing else is in it."""
    assert files_in_wheel(wheel) == files_in_source(copy)
    assert "pace/py.typed" in files_in_wheel(wheel)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sdist_builds_the_same_wheel(copy: Path, tmp_path: Path) -> None:
    """A wheel built from the sdist holds what a wheel built from the tree holds."""
    source = tmp_path / "source"
    shutil.copytree(copy, source, symlinks=True, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
    [sdist] = build(source, "--sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "LICENSE").is_file()
    [rebuilt] = build(unpacked, "--wheel").glob("*.whl")
    assert files_in_wheel(rebuilt) == files_in_source(copy)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_installed_wheel_imports_without_torch(installed: Path, tmp_path: Path) -> None:
    """With the api and client extras alone, every module imports but those inside the runtime."""
    # Only Alembic can import its environment, with a context of its own around it; the others are extras.
    skip = ["pace.runtime.", "pace.api.storage.migrations.env", "pace.api.workers.dask_", "pace.api.oidc"]
    files, loaded = import_all(installed / "bin" / "python", tmp_path, skip=skip)
    assert {"pace.solver", "pace.api", "pace.runtime"} <= files.keys()
    outside = {name: file for name, file in files.items() if not Path(file).is_relative_to(installed)}
    assert outside == {}
    assert "torch" not in loaded


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    """The wheel brings the `pace` command."""
    assert "optimize" in run(installed / "bin" / "pace", "--help", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_the_wheel_of_a_pack_holds_every_file_of_its_package(pack: Path, tmp_path: Path) -> None:
    """Its modules, data and license; its tests, benchmarks and pages stay behind."""
    source = tmp_path / "packs" / pack.name
    shutil.copy(ROOT / "LICENSE", tmp_path)
    shutil.copytree(pack, source, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    [wheel] = build(source, "--wheel").glob("*.whl")
    package = source / f"pace_{pack.name}"
    found = {path.relative_to(source).as_posix() for path in package.rglob("*") if path.is_file()}
    assert files_in_wheel(wheel) == found
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def test_core_and_solver_import_nothing_that_belongs_to_an_extra(tmp_path: Path) -> None:
    """The core, its command line included, and the solver load no torch, web framework or Horovod."""
    skip = ["pace.api", "pace.client.", "pace.runtime"]
    files, loaded = import_all(Path(sys.executable), tmp_path, skip=skip)
    assert "pace.cli" in files
    assert sorted(loaded & set(FOREIGN)) == []


def test_a_training_job_needs_no_solver() -> None:
    """It loads nothing of the 400 MB that compute schedules, or the extra `torch` would not do."""
    program = (
        "import importlib, pathlib, sys, pace.client.http, pace.runtime\n"
        "others = ('accelerate', 'horovod', 'inductor', 'lightning', 'torchtitan', 'transformers')\n"
        "folder = pathlib.Path(pace.runtime.__path__[0])\n"
        "for path in folder.rglob('*.py'):\n"
        "    parts = path.relative_to(folder).with_suffix('').parts\n"
        "    name = '.'.join(['pace.runtime', *(part for part in parts if part != '__init__')])\n"
        "    if not any(other in name for other in others): importlib.import_module(name)\n"
        "print(*sorted({'ijson', 'llvmlite', 'numba', 'pulp', 'scipy'} & sys.modules.keys()))\n"
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not any("solver" in each for each in extras["torch"])
    assert run(sys.executable, "-c", program, cwd=ROOT).strip() == ""


def test_constraints_pin_every_requirement_within_its_range() -> None:
    """Each requirement in pyproject.toml has a pin in constraints.txt that its range admits."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    files = [ROOT / "pyproject.toml", *(pack / "pyproject.toml" for pack in PACKS)]
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    listed = (
        [*project["dependencies"], *chain(*project.get("optional-dependencies", {}).values())]
        for project in projects
    )
    for requirement in map(Requirement, chain(*listed)):
        # scripts/install builds Horovod; the others are in this repository.
        if requirement.name == "horovod" or requirement.name.startswith("pace-"):
            continue
        pin = versions.get(canonicalize_name(requirement.name))
        assert pin is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pin), f"{requirement} does not admit the tested {pin}"
