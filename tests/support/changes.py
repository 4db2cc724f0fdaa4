"""Finds in source code what changes files, whether a step is announced right before it, and the names of the steps."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping

# fmt: off
_METHODS = frozenset({
    "write_bytes", "write_text", "unlink", "rename", "mkdir", "rmdir", "symlink_to", "hardlink_to", "rmtree",
    "copyfile", "copytree", "copy2", "makedirs", "removedirs", "renames", "write", "writelines", "writev",
    "pwrite", "pwritev", "sendfile", "copy_file_range", "splice", "fsync", "fdatasync", "sync", "truncate", "ftruncate",
    "posix_fallocate", "link", "symlink", "fdopen", "mkfifo", "mknod",
})
# fmt: on
_FUNCTIONS = {"os": frozenset({"replace", "remove"}), "shutil": frozenset({"copy", "move"})}
_MODULES = frozenset({"os", "shutil", "crckpt.host.disk.files"})
_WRITING = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"})


def find_unannounced(source: str) -> tuple[str, ...]:
    """Calls that change files without `step(...)` as the statement before, and imports that could hide such calls."""
    tree = ast.parse(source)
    announced = {id(call) for statement in _find_announced(tree) for call in _calls(_head(statement))}
    calls = (call for call in _calls(tree) if _changes(call) and id(call) not in announced)
    imports = (node for node in ast.walk(tree) if _hides(node))
    return tuple(ast.unparse(node) for node in (*calls, *imports))


def step_names(primitives: str, sources: Iterable[str]) -> frozenset[str]:
    """The names of all steps that `sources` take by functions of the module `primitives`, or by their own.

    A function of theirs that has a parameter `what` passes it on, as does a method of a backend, which are called
    `backend.METHOD(...)`. Fails for a name that is not a literal.
    """
    trees = [ast.parse(source) for source in (primitives, *sources)]
    suffixes = _suffixes([function for tree in trees for function in _functions(tree)])
    names: set[str] = set()
    for tree in trees[1:]:
        for call in _calls(tree):
            if _callee(call) in suffixes and _find_passed_on(call) is None:
                argument = call.args[-1]
                assert isinstance(argument, ast.Constant), f"a step has no plain name: {ast.unparse(call)}"
                names |= {f"{argument.value!s}{suffix}" for suffix in suffixes[_callee(call)]}
    return frozenset(names)


def _suffixes(functions: list[ast.FunctionDef]) -> Mapping[str, set[str]]:
    """Find what each function with a parameter `what` appends to it: its own steps, and those of what it calls."""
    named = [function for function in functions if any(argument.arg == "what" for argument in function.args.args)]
    found: dict[str, set[str]] = {_name(function): set() for function in named}
    for function in named:
        found[_name(function)] |= {_suffix(call) for call in _calls(function) if _callee(call) == "step"}
    for _ in found:
        for function in named:
            for call in _calls(function):
                added = _find_passed_on(call)
                if _callee(call) in found and added is not None:
                    found[_name(function)] |= {added + suffix for suffix in found[_callee(call)]}
    return found


def _name(function: ast.FunctionDef) -> str:
    """A method's begins with a dot."""
    is_method = bool(function.args.args) and function.args.args[0].arg == "self"
    return f".{function.name}" if is_method else function.name


def _suffix(call: ast.Call) -> str:
    """Of step(f"{what}.suffix", ...)."""
    name = call.args[0]
    assert isinstance(name, ast.JoinedStr), ast.unparse(call)
    assert isinstance(name.values[-1], ast.Constant), ast.unparse(call)
    return str(name.values[-1].value)


def _find_passed_on(call: ast.Call) -> str | None:
    """Find what is appended to `what` where that is passed on; None where it is not."""
    match call.args[-1:]:
        case [ast.Name(id="what")]:
            return ""
        case [ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id="what")), ast.Constant(value=str(added))])]:
            return added
    return None


def _callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=of, attr=method) if ast.unparse(of).endswith("backend"):
            return f".{method}"
    return ""


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (found for found in ast.walk(node) if isinstance(found, ast.Call))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _find_announced(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements that come right after a step."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                for before, statement in itertools.pairwise(statements):
                    if ast.unparse(before).startswith("step("):
                        yield statement


def _head(statement: ast.stmt) -> ast.AST:
    """A simple statement; of one with a block nothing, since the block may run more than once."""
    return ast.Pass() if hasattr(statement, "body") else statement


def _changes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" and _writes(call.args[1:])
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if function.attr == "open":
        return _has_writing_flags(call) if owner == "os" else _writes([*call.args, *(k.value for k in call.keywords)])
    if function.attr in _METHODS or function.attr in _FUNCTIONS.get(owner, ()):
        return True
    # Of a path: that of a text takes two.
    return len(call.args) == {"replace": 1, "touch": 0}.get(function.attr) and not call.keywords


def _writes(arguments: list[ast.expr]) -> bool:
    modes = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(set(mode) & set("wax+") for mode in modes)


def _has_writing_flags(call: ast.Call) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _WRITING for node in ast.walk(call))


def _hides(node: ast.AST) -> bool:
    """`from os import ...`, and the primitives under another name."""
    if isinstance(node, ast.Import):
        return any(name.name in _MODULES and (name.asname or "." in name.name) for name in node.names)
    if not isinstance(node, ast.ImportFrom):
        return False
    if node.module == "crckpt.host.disk.files":
        return any(name.asname for name in node.names)
    return node.module in _MODULES or (node.module == "crckpt.host.disk" and any(n.name == "files" for n in node.names))
