"""The pipeline's page lists all public names, and importing them costs nothing until they are used."""

import importlib.util
import subprocess
import sys

import pytest

from mqdb import pipeline


@pytest.mark.parametrize("name", pipeline.__all__)
def test_what_the_page_lists_is_there_and_no_module_takes_its_place(name: str) -> None:
    assert callable(getattr(pipeline, name))
    assert importlib.util.find_spec(f"mqdb.pipeline.{name}") is None


def test_what_it_does_not_list_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        getattr(pipeline, "sesion")  # noqa: B009


@pytest.mark.parametrize("module", ["mqdb.pipeline", "mqdb.cli.app"])
def test_neither_the_page_nor_the_command_line_imports_spark(module: str) -> None:
    look = f"import sys, {module}; print(*sorted({{'pyspark', 'pyarrow', 'py4j'}} & sys.modules.keys()))"

    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "\n"
