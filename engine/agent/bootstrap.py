"""The first program that ssh carries: imports the sources that follow, so that nothing is installed on the host.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The remote command reads this text from its standard input and executes it. On the same input follows one bundle
(``console/sessions/bundle.py``): the sources, the name of the module to run and its settings.
"""

import json
import sys
import zlib
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import IO, Any, Dict, Optional


class SourceImporter(object):
    """Imports modules from ``sources`` (full name -> text), before any that are installed on the host."""

    def __init__(self, sources: Dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """Called by the import system for every module that is not loaded yet."""
        if name in self.sources or self.is_package(name):
            return spec_from_loader(name, self)  # type: ignore[arg-type]  # by its methods it is a loader
        return None

    def is_package(self, name: str) -> bool:
        """Packages have no text of their own."""
        return any(other.startswith(name + ".") for other in self.sources)

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default module type."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        exec(compile(self.sources.get(name, ""), "<carried>/" + name, "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        """The source, for tracebacks."""
        return self.sources.get(name, "")


def receive(pipe: IO[bytes]) -> Any:
    """Read one bundle: a line with its length, then compressed JSON."""
    return json.loads(zlib.decompress(pipe.read(int(pipe.readline()))).decode())


def start(pipe: IO[bytes]) -> None:
    """Unpack the bundle and run its main module."""
    bundle = receive(pipe)
    importer = SourceImporter(bundle["sources"])
    sys.meta_path.insert(0, importer)
    import_module(bundle["main"]).main(bundle["settings"], importer.sources)


if __name__ == "__main__":
    if sys.version_info < (3, 6):
        sys.exit("needs Python 3.6 or later, this is %d.%d" % sys.version_info[:2])
    start(sys.stdin.buffer)
