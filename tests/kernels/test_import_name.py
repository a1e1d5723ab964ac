import importlib.machinery
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_kernels_folder_never_shadows_an_installed_package_of_that_name(tmp_path):
    """Hugging Face ships a package called ``kernels``; from the repository root ours is a folder of the same name."""
    installed = tmp_path / "kernels"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    spec = importlib.machinery.PathFinder.find_spec("kernels", [str(REPOSITORY), str(tmp_path)])
    assert spec is not None
    assert spec.origin == str(installed / "__init__.py")


def test_without_that_package_our_folder_is_not_taken_for_it():
    spec = importlib.machinery.PathFinder.find_spec("kernels", [str(REPOSITORY)])
    assert spec is None or spec.loader is None or spec.origin is None
