"""Count what makes prose hard to read: ``python -m benchmarks.words [ROOT] [--list]``.

Counted in `docs/` (Markdown without code, tables and links' targets) and in `src/` (docstrings, comments and strings
with a space in them, also of the scripts of the report): forbidden words of ``docs/internals/glossary.md``, also in
names; ambiguous words, without the uses that the glossary calls legitimate; sentences of more than 25 words; docstrings
that begin with What, How, Who or Which; words in docs (as ``wc -w``); public names.

``--list`` prints every forbidden and every ambiguous word with its line.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Uses in which each word has one meaning, as the third table of the glossary lists them; to draw is to sample.
LEGITIMATE = re.compile(
    r"\b(?:parts? of|in (?:\w+ )?parts|(?:no|had|takes?) (?:a |no )?part(?: in)?|changes? places|(?:last|first) places?"
    r"|(?:in|into|to|takes?) (?:the |its |their |this )*places?(?: of)?|division by"
    r"|(?:is|are|was|were|be|been|it|that|to|may|can|must|of|carefully|not|and) (?:re)?drawn?"
    r"|drawn (?:at|from|with|of|in|regardless|anew|once|by)"
    r"|[Dd]raws? (?:a|an|the|one|many|few|as|every|each|and|from|with|whole|voxels|tiles|three|four|its?|so|again)\b)"
)
AMBIGUOUS = re.compile(r"\b(?:parts?|places?|draws?|drawn|divisions?)\b", re.IGNORECASE)
LONGEST = 25
QUESTIONS = ("What", "How", "Who", "Which")


def forbidden(root: Path = ROOT) -> re.Pattern[str]:
    """Return the pattern of all forbidden words, from the second table of the glossary."""
    table = (root / "docs" / "internals" / "glossary.md").read_text("utf-8").split("\n## ")[1]
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


def names(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the words of the name of a module, its classes and its functions, but deprecated ones, with their lines."""
    kinds = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    found = [(1, module.stem)]
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, kinds) and not (ast.get_docstring(node) or "").startswith("Deprecated"):
            found.append((node.lineno, node.name))
    for line, name in found:
        yield line, re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", name)


def ambiguous(text: str) -> list[str]:
    """Return the ambiguous words of a text, without names of fields and options, doctests and legitimate uses."""
    text = re.sub(
        r"^\s*(?:>>>|\.\.\.) .*$|^\s*(?:parts?|draws?|places?): |\{[^}]*\}|--\S+", "", text, flags=re.MULTILINE
    )
    return AMBIGUOUS.findall(LEGITIMATE.sub("", " ".join(text.split())))


def page_texts(script: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings with a space of a script of the report, with their lines."""
    for number, line in enumerate(script.read_text("utf-8").splitlines(), 1):
        for text in re.findall(r"'[^']* [^']*'|`[^`]* [^`]*`", line):
            yield number, text


def found(pattern: re.Pattern[str], root: Path = ROOT) -> list[str]:
    """Return each forbidden word of pages, texts and names, after its file and line."""
    read = {path: (*texts(path), *names(path)) for paths in modules(root).values() for path in paths}
    read |= {path: tuple(page_texts(path)) for path in sorted((root / "src").rglob("*.js"))}
    lines = [
        f"{path.relative_to(root)}:{line}: {match[0]}"
        for path, said in read.items()
        for line, text in said
        for match in pattern.finditer(text)
    ]
    for path in pages(root):
        text = prose(path)
        for match in pattern.finditer(text):
            near = " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())
            lines.append(f"{path.relative_to(root)}: {match[0]}: ...{near}...")
    return lines


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
    options = parser.parse_args()
    root = options.root
    paths = [path for group in modules(root).values() for path in group]
    said = [text for path in paths for text in docstrings(path)]
    written = {path: prose(path) for path in pages(root)}
    wrong = found(forbidden(), root)
    places = [(path, line, text) for path in paths for line, text in texts(path)]
    places += [(path, 0, text) for path, text in written.items()]
    unclear = Counter(word.lower() for _, _, text in places for word in ambiguous(text))
    asked = sum(text.startswith(QUESTIONS) for text in said)
    lengths = [sum(map(long_sentences, group)) for group in (written.values(), said)]
    each = ", ".join(f"{word} {count}" for word, count in unclear.most_common())
    log = len((root / "docs" / "internals" / "decisions.md").read_text("utf-8").split())
    total = sum(len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md"))
    in_pages = sum(line.startswith("docs") for line in wrong)
    print(f"docstrings that begin with {', '.join(QUESTIONS)}: {asked} of {len(said)}")
    print(f"sentences over {LONGEST} words: docs {lengths[0]}, docstrings {lengths[1]}")
    print(f"forbidden words: docs {in_pages}, src {len(wrong) - in_pages}")
    print(f"ambiguous words: {sum(unclear.values())} ({each})")
    print(f"words in docs: {total:,}, of these {log:,} in the log of decisions")
    print(f"public names: {public_names(root)}")
    if options.list:
        print("\n".join(wrong))
        for path, line, text in places:
            if words := ambiguous(text):
                print(f"{path.relative_to(root)}:{line}: ambiguous: {', '.join(words)}")


if __name__ == "__main__":
    main()
