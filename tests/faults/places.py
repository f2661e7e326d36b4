"""Contents of folders, for comparing them before and after."""

from pathlib import Path


def files_of(folder):
    """Return what every file holds, by name, and where every link leads."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }
