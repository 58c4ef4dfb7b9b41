"""Finds where code leans on the insides of others: private names, replaced functions, formats, files of the kernel."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from redrive.engine.core.spec import collector_paused

#: Named tuples have these as methods for everybody, and ``os._exit`` is documented.
PUBLIC = {"_replace", "_asdict", "_make", "_fields", "_field_defaults", "_exit"}
#: What is no contract of Python, although its name has no underscore, or is one that acts on the whole process.
CALLS = {
    *(f"gc.{name}" for name in ("freeze", "unfreeze", "collect", "disable", "enable", "set_threshold", "get_objects")),
    *(f"os.{name}" for name in ("fork", "forkpty", "register_at_fork")),
    *(f"sys.{name}" for name in ("setswitchinterval", "settrace", "setprofile", "getrefcount")),
    *(f"faulthandler.{name}" for name in ("enable", "register", "unregister", "dump_traceback")),
    "ctypes.CDLL",
    "struct.unpack_from",
}
FRAME = re.compile(r"(f_(back|code|lineno|lasti|locals|globals)|(cr|gi|ag)_(frame|await|code)|gi_yieldfrom)$")
FILES = re.compile(r"/(proc|sys)(/\S*)?")
DATABASE_FILES = {"-wal", "-shm", "-journal"}
_SELVES = ("self", "cls", "super()")
_NAME = re.compile(r"_[a-z][a-z_]*")


@collector_paused()
def leans(root: Path, folders: Iterable[str]) -> dict[str, set[str]]:
    """Return what the modules below the folders lean on, each with the modules that do."""
    trees = {path: ast.parse(path.read_text()) for folder in folders for path in sorted((root / folder).rglob("*.py"))}
    nodes = {path: list(ast.walk(tree)) for path, tree in trees.items()}
    own = {name for some in nodes.values() for name in _defined(some)}
    found: dict[str, set[str]] = {}
    for path, some in nodes.items():
        name = str(path.relative_to(root))
        for lean in _Module(name, some, own).leans():
            found.setdefault(lean, set()).add(name)
    return found


def leans_of(source: str, own: Iterable[str] = ()) -> set[str]:
    """Return what a text leans on; its classes are not loaded."""
    nodes = list(ast.walk(ast.parse(source)))
    return set(_Module(None, nodes, {*own, *_defined(nodes)}).leans())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


def _may_lean(node: ast.Attribute) -> bool:
    """Whether an attribute can be a lean by its own name, its owner's or its use: the others need not be unparsed."""
    is_of_libc = "_libc" in (getattr(node.value, "attr", None), getattr(node.value, "id", None))
    is_set = isinstance(node.ctx, ast.Store | ast.Del)
    return is_of_libc or is_set or is_private(node.attr) or node.attr in _CALL_NAMES or bool(FRAME.match(node.attr))


_CALL_NAMES = {call.rpartition(".")[2] for call in CALLS}


class _Module:
    """One module. ``name`` None: its classes are not loaded."""

    def __init__(self, name: str | None, nodes: list[ast.AST], own: set[str]) -> None:
        self._name = name
        self._nodes = nodes
        self._own = own
        self._imported = {bound: meant for node in nodes for bound, meant in _imports(node)}

    def leans(self) -> Iterator[str]:
        for meant in self._imported.values():
            if any(map(is_private, meant.split("."))):
                yield meant
        pieces = {id(piece) for node in self._nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
        for node in self._nodes:
            if isinstance(node, ast.ClassDef):
                yield from self._of_class(node)
            elif id(node) not in pieces:
                yield from self._of_node(node)

    def _of_class(self, node: ast.ClassDef) -> Iterator[str]:
        """The private names of foreign base classes that a class uses or replaces."""
        names = self._private_names_of_bases(node)
        for child in ast.walk(node) if names else ():
            match child:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in names:
                    yield names[name]
                case ast.Attribute(value=value, attr=name) if name in names and ast.unparse(value) in _SELVES:
                    yield names[name]

    def _of_node(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Attribute(value=value, attr=name) if _may_lean(node):
                yield from self._of_attribute(node, ast.unparse(value), name)
            case ast.Call(func=ast.Attribute(attr="multiple"), args=[ast.Name(id=module)], keywords=replaced):
                yield from (f"{self._imported.get(module, module)}.{one.arg} is set" for one in replaced)
            case ast.JoinedStr(values=values):
                yield from _of_text("".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values))
            case ast.Constant(value=str() as text):
                yield from _of_text(text)
                if _NAME.fullmatch(text) and is_private(text) and text not in self._own:
                    yield f"the name {text}"
            case ast.Constant(value=bytes() as data) if data.startswith(b"SQLite format"):
                yield "SQLite's header"

    def _of_attribute(self, node: ast.Attribute, of: str, name: str) -> Iterator[str]:
        meant = ".".join((self._imported.get(of, of), name))
        if meant in CALLS:
            yield meant
        elif FRAME.match(name):
            yield f"frame.{name}"
        elif of.rpartition(".")[2] == "_libc":
            yield f"libc.{name}"
        elif of in self._imported and isinstance(node.ctx, ast.Store | ast.Del):
            yield f"{meant} is set"
        elif is_private(name) and (of in self._imported or (name not in self._own and of not in _SELVES)):
            yield meant

    def _private_names_of_bases(self, node: ast.ClassDef) -> dict[str, str]:
        loaded = getattr(self._load(), node.name, None) if self._name is not None and node.bases else None
        bases = loaded.__mro__ if isinstance(loaded, type) else ()
        foreign = [base for base in bases if base.__module__.partition(".")[0] not in ("redrive", "builtins", "typing")]
        return {name: f"{base.__name__}.{name}" for base in reversed(foreign) for name in _private_names(base)}

    def _load(self) -> object:
        assert self._name is not None
        module = ".".join(("redrive", *Path(self._name).with_suffix("").parts)).removesuffix(".__init__")
        return importlib.import_module(module)


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an absolute import binds, each with what it means."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _of_text(text: str) -> Iterator[str]:
    if FILES.fullmatch(text):
        yield re.sub(r"\{[^}]*\}", "{}", text)
    if text in DATABASE_FILES or any(text.endswith("{}" + one) for one in DATABASE_FILES):
        yield f"SQLite's -{text.rpartition('-')[2]}"


@functools.cache
def _private_names(base: type) -> frozenset[str]:
    """The private names of a class, with those of the attributes that its methods set."""
    names = set(vars(base))
    for node in _classes(base.__module__).get(base.__qualname__, ()):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(filter(is_private, names))


@functools.cache
def _classes(module: str) -> dict[str, list[ast.AST]]:
    """The nodes of each class at the top of a module."""
    file = getattr(sys.modules[module], "__file__", None) or ""
    tree = ast.parse(Path(file).read_text()) if file.endswith(".py") else ast.Module([], [])
    return {node.name: list(ast.walk(node)) for node in tree.body if isinstance(node, ast.ClassDef)}
