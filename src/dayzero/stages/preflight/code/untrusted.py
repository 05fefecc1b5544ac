"""What in a Python file deserves a look before it may run, read from its syntax: which functions it reaches for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .imports import imported

NETWORK, PROGRAMS, EVALUATES = "uses the network", "starts other programs", "runs text as code"
NATIVE, UNPICKLES, WRITES = "loads or builds native code", "unpickles", "writes or deletes files"
SECRETS, ENCODED = "reads secrets from the environment", "holds long encoded text"

_DOTTED = {
    NETWORK: ("socket", "ssl", "requests", "urllib.request", "urllib3", "httpx", "aiohttp", "http.client",
              "http.server", "ftplib", "smtplib", "telnetlib", "xmlrpc", "websocket", "websockets", "paramiko", "boto3",
              "huggingface_hub.hf_hub_download", "huggingface_hub.snapshot_download", "huggingface_hub.HfApi",
              "torch.hub", "asyncio.open_connection"),
    PROGRAMS: ("subprocess", "os.system", "os.popen", "os.fork", "os.posix_spawn", "os.startfile", "pty.spawn",
               "pexpect", "multiprocessing.Process", "asyncio.create_subprocess_exec",
               "asyncio.create_subprocess_shell"),
    EVALUATES: ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "importlib.import_module",
                "importlib.util.spec_from_file_location", "runpy", "code.InteractiveInterpreter", "marshal.loads"),
    NATIVE: ("ctypes", "cffi", "torch.utils.cpp_extension", "torch.ops.load_library", "torch.classes.load_library"),
    UNPICKLES: ("pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle", "dill", "cloudpickle", "joblib.load",
                "pandas.read_pickle", "shelve.open", "torch.load", "numpy.load"),
    WRITES: ("os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.rename", "os.replace", "os.symlink", "os.chmod",
             "shutil", "open"),
}
_OFTEN_HARMLESS = ("torch.load", "numpy.load")  # by how they are called
_STARTS = ("os.exec", "os.spawn")
_METHODS = ("write_text", "write_bytes", "unlink", "rmdir")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
_BLOB = re.compile(r"[A-Za-z0-9+/=_\-\s]{300,}|(?:\\x[0-9a-fA-F]{2}){80,}")


def suspicions(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(kind, line, what) of everything that deserves a look."""
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _call(node, names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node)
        elif isinstance(node, ast.Subscript) and _path(node.value, names) == "os.environ":
            yield from _secret(node.slice, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if _BLOB.fullmatch(text.strip()) and not re.search(r"\w\s+\w+\s+\w", text):
                yield ENCODED, node.lineno, f"{len(text)} characters"


def _path(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name that an expression stands for; empty where it is not one."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _kind(path: str) -> str | None:
    for kind, known in _DOTTED.items():
        if any(path == one or path.startswith(f"{one}.") for one in known):
            return kind
    return PROGRAMS if path.startswith(_STARTS) else None


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, int, str]]:
    """Modules that have no other use; of the others only what is called counts."""
    if isinstance(node, ast.ImportFrom) and node.level:
        return
    for alias in node.names:
        path = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        kind = _kind(path)
        if kind in (NETWORK, PROGRAMS, NATIVE) or (kind == UNPICKLES and path not in _OFTEN_HARMLESS):
            yield kind, node.lineno, path


def _call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, int, str]]:
    path = _path(node.func, names)
    kind = _kind(path)
    options = {keyword.arg: keyword.value for keyword in node.keywords}
    if path in ("open", "io.open", "codecs.open"):
        mode = options.get("mode", node.args[1] if len(node.args) > 1 else None)
        kind = WRITES if isinstance(mode, ast.Constant) and re.search("[wax+]", str(mode.value)) else None
    elif path in _OFTEN_HARMLESS:
        safe = path == "torch.load" and _is(options.get("weights_only"), True)
        kind = None if safe or (path == "numpy.load" and not _is(options.get("allow_pickle"), True)) else kind
    elif path == "compile" and isinstance(node.func, ast.Name) and len(node.args) + len(options) < 3:
        kind = None  # a regular expression or a graph: the builtin takes three arguments
    elif kind is None and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        kind, path = WRITES, node.func.attr
    if kind:
        yield kind, node.lineno, path
    if path in ("os.getenv", "os.environ.get") and node.args:
        yield from _secret(node.args[0], node.lineno)


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _secret(node: ast.expr, line: int) -> Iterator[tuple[str, int, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SECRET.search(node.value):
        yield SECRETS, line, node.value
