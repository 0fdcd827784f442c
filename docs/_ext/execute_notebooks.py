"""Executes notebooks and stores their outputs in them; those of docs/tutorials if none is named.

    python docs/_ext/execute_notebooks.py [NOTEBOOK ...]        (make tutorials)

The site shows the stored outputs; tests execute the notebooks anew.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with fresh outputs; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": path.parent}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # without what packages write to stderr
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(TUTORIALS.glob("*.ipynb"))):
        nbformat.write(executed(path), path)
