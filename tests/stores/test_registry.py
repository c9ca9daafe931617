from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.stores.files import FileStore
from millstream.stores.registry import GROUP, open_store

STORE = """
from millstream.stores.files import open_store as open_files

def open_store(url, writer):
    return open_files(url.replace("attic://", "files://"), writer)
"""


class Packages:
    """A folder with installed packages that register stores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, name: str, scheme: str, opener: str, *, extra: str | None = None) -> None:
        about = self._folder / f"{name}-1.0.dist-info"
        about.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (about / "METADATA").write_text(metadata + (f"Provides-Extra: {extra}\n" if extra else ""))
        (about / "entry_points.txt").write_text(f"[{GROUP}]\n{scheme} = {opener}\n")

    def write(self, module: str, code: str) -> None:
        (self._folder / f"{module}.py").write_text(code)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for module in ("attic_store", "needy_store"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return Packages(folder)


def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    store = open_store(f"files://{tmp_path}/store", "w")
    assert isinstance(store, FileStore)
    store.close()


def test_any_package_can_register_a_store(packages: Packages, tmp_path: Path) -> None:
    packages.write("attic_store", STORE)
    packages.install("attic", "attic", "attic_store:open_store")

    store = open_store(f"attic://{tmp_path}/store", "w")

    store.put({"key": b"value"})
    assert store.get(["key"]) == {"key": b"value"}


def test_the_error_for_an_unknown_scheme_lists_the_registered_ones(packages: Packages) -> None:
    packages.install("attic", "attic", "attic_store:open_store")

    with pytest.raises(ConfigError, match=r"not a known store; .* attic://, files://, log://, "):
        open_store("cellar:///folder", "w")


def test_a_store_whose_dependency_is_missing_names_the_extra(packages: Packages) -> None:
    packages.write("needy_store", "import no_such_module_anywhere")
    packages.install("needy", "needy", "needy_store:open_store", extra="needy")

    with pytest.raises(ConfigError, match=r"no_such_module_anywhere: pip install 'needy\[needy\]'"):
        open_store("needy:///folder", "w")


def test_a_store_without_extras_names_the_missing_package(packages: Packages) -> None:
    packages.write("needy_store", "import no_such_module_anywhere")
    packages.install("needy", "needy", "needy_store:open_store")

    with pytest.raises(ConfigError, match="pip install no_such_module_anywhere"):
        open_store("needy:///folder", "w")


def test_two_packages_with_one_scheme_are_rejected(packages: Packages) -> None:
    packages.install("attic", "attic", "attic_store:open_store")
    packages.install("loft", "attic", "loft_store:open_store")

    with pytest.raises(ConfigError, match=r"several packages register a store attic://: .*loft"):
        open_store("attic:///folder", "w")


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "rocksdb"])
def test_a_store_of_ours_that_is_not_registered_names_its_extra(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.stores.registry.GROUP", "nothing.here")

    with pytest.raises(ConfigError, match=rf"pip install 'millstream\[{scheme}\]'"):
        open_store(f"{scheme}://somewhere", "w")


@pytest.mark.parametrize(
    ("url", "shown"), [("/a/folder", "'/a/folder'"), ("rediss://me:hush@host", "'rediss://…'")]
)
def test_an_unknown_url_is_shown_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(ConfigError, match="files://, log://") as raised:
        open_store(url, "w")
    assert str(raised.value).startswith(f"{shown} is not a known store")


@pytest.mark.parametrize("writer", ["", "a/b", "a b", "w" * 65, "ä"])
def test_invalid_names_of_writers_are_rejected(writer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a writer's name"):
        open_store(f"files://{tmp_path}/store", writer)
