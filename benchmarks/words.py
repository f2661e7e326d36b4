"""Count what makes prose hard to read: ``python -m benchmarks.words [ROOT] [--list] [--write]``.

Counted in `docs/` (Markdown without code, tables and links' targets) and in `src/` (docstrings, comments and strings
with a space in them): forbidden words of ``docs/internals/glossary.md``, ambiguous words, sentences of more than 25
words; docstrings that begin with What, How, Who or Which; words in docs (as ``wc -w``); public names.

``--list`` prints every forbidden word with its place. ``--write`` lowers the bounds of ``benchmarks/words.toml``, which
``tests/test_vocabulary.py`` enforces; it never raises one.
"""

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = Path(__file__).with_name("words.toml")
AMBIGUOUS = re.compile(r"\b(?:parts?|regions?|places?|draws?|drawn|divisions?)\b", re.IGNORECASE)
LONGEST = 25
QUESTIONS = ("What", "How", "Who", "Which")


def forbidden(root: Path = ROOT) -> re.Pattern[str]:
    """Return the pattern of all forbidden words, from the second table of the glossary."""
    table = (root / "docs" / "internals" / "glossary.md").read_text("utf-8").split("## Forbidden words")[1]
    words = [word.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:] for word in row.split(",")]
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)


def prose(page: Path) -> str:
    """Return the text of a page without code and without the targets of links."""
    text = re.sub(
        r"^```.*?^```$|^---\n.*?\n---$|<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text))


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings, other strings with a space, and comments of a module, with their lines."""
    source = module.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, re.sub(r"`+[^`\n]*`+", "CODE", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`+[^`\n]*`+", "CODE", token.string.lstrip("# "))


def docstrings(module: Path) -> Iterator[str]:
    """Yield the docstrings of a module."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def long_sentences(text: str) -> int:
    """Return the number of sentences of more than 25 words; tables, headings and doctests are left out.

    Inline code and an inline formula are one word.
    """
    text = re.sub(r"^>>> .*?(?=\n\s*\n|\Z)|^=+ =.*^=+ =.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:\||#| {4,}|\.\. ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`+[^`]*`+", "CODE", text)
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    return sum(len(one.split()) > LONGEST for block in blocks for one in re.split(r"(?<=[.!?])\s+", block))


def modules(root: Path = ROOT) -> dict[str, list[Path]]:
    """Return the modules of each package of src, and those beside the packages as `modules`."""
    found: dict[str, list[Path]] = {}
    source = root / "src" / "segcal"
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source).parts
        found.setdefault(inside[0] if len(inside) > 1 else "modules", []).append(path)
    return found


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages, without the glossary, which lists the forbidden words."""
    return [path for path in sorted((root / "docs").rglob("*.md")) if path.name != "glossary.md"]


def counts(pattern: re.Pattern[str], root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return the numbers of forbidden words: by package, and by page that has any."""
    packages = {
        name: sum(len(pattern.findall(text)) for path in paths for _, text in texts(path))
        for name, paths in modules(root).items()
    }
    found = {path.relative_to(root).as_posix(): len(pattern.findall(prose(path))) for path in pages(root)}
    return {"packages": packages, "pages": {name: count for name, count in found.items() if count}}


def public_names(root: Path = ROOT) -> int:
    """Return the number of public functions and classes of public modules."""
    trees = [
        ast.parse(path.read_text("utf-8")) for paths in modules(root).values() for path in paths if path.name[0] != "_"
    ]
    named = ast.ClassDef, ast.FunctionDef
    return sum(isinstance(node, named) and node.name[0] != "_" for tree in trees for node in tree.body)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout (default: this one)")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    root, pattern = options.root, forbidden()
    paths = [path for found in modules(root).values() for path in found]
    said = [text for path in paths for text in docstrings(path)]
    written = {path: prose(path) for path in pages(root)}
    found = counts(pattern, root)
    everything = [*written.values(), *(text for path in paths for _, text in texts(path))]
    ambiguous = Counter(word.lower() for text in everything for word in AMBIGUOUS.findall(text))
    asked = sum(text.startswith(QUESTIONS) for text in said)
    lengths = [sum(map(long_sentences, group)) for group in (written.values(), said)]
    each = ", ".join(f"{word} {count}" for word, count in ambiguous.most_common())
    total = sum(len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md"))
    print(f"docstrings that begin with {', '.join(QUESTIONS)}: {asked} of {len(said)}")
    print(f"sentences over {LONGEST} words: docs {lengths[0]}, docstrings {lengths[1]}")
    print(f"forbidden words: docs {sum(found['pages'].values())}, src {sum(found['packages'].values())}")
    print(f"ambiguous words: {sum(ambiguous.values())} ({each})")
    print(f"words in docs: {total:,}")
    print(f"public names: {public_names(root)}")
    if options.list:
        for path in paths:
            for line, text in texts(path):
                for match in pattern.finditer(text):
                    print(f"{path.relative_to(root)}:{line}: {match[0]}")
        for path, text in written.items():
            for match in pattern.finditer(text):
                around = " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())
                print(f"{path.relative_to(root)}: {match[0]}: ...{around}...")
    if options.write:
        _write(found)


def _write(found: dict[str, dict[str, int]]) -> None:
    """Lower the bounds to what was found."""
    old = tomllib.loads(BOUNDS.read_text("utf-8")) if BOUNDS.exists() else found
    lines = ["# Forbidden words of docs/internals/glossary.md that are left; `python -m benchmarks.words --write`."]
    for kind, now in found.items():
        lines += ["", f"[{kind}]"]
        bounds = {name: min(count, old[kind].get(name, 0)) for name, count in now.items()}
        lines += [f'"{name}" = {count}' for name, count in bounds.items() if count or kind == "packages"]
    BOUNDS.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
