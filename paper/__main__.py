"""List the commands of this folder with one line each: ``python -m paper``."""

import ast
from collections.abc import Iterator
from pathlib import Path


def commands(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield module and first sentence of every file of a package that can be run; nothing is imported."""
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__main__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        runs = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
        if runs and module != folder.name:
            yield module, (ast.get_docstring(tree) or "").partition("\n")[0]


def print_commands(folder: Path) -> None:
    """Print how each command of a package is called and what it does."""
    found = list(commands(folder))
    width = max(len(module) for module, _ in found)
    print("How each is called stands at the top of its file, and most say it with --help:\n")
    for module, about in found:
        print(f"python -m {module:{width}}  {about}")


if __name__ == "__main__":
    print_commands(Path(__file__).parent)
