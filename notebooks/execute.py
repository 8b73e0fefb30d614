"""Execute the notebooks and keep their outputs: ``python notebooks/execute.py [FILE ...]``, without a file all of them.

What tells of the machine or of the hour is left out. A cell that fails, or that writes to stderr, is an error: a
reader would stumble over it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
SECONDS_PER_CELL = 600
_PROGRESS_BAR = "application/vnd.jupyter.widget-view+json"


def notebooks() -> list[Path]:
    """The notebooks in order."""
    return sorted(FOLDER.glob("[0-9]*.ipynb"))


def executed(path: Path, folder: Path = FOLDER) -> NotebookNode:
    """A notebook with fresh outputs; the file stays as it is.

    Args:
        path: The notebook.
        folder: Where its kernel works.

    Raises:
        nbclient.exceptions.CellExecutionError: When a cell fails.
        ValueError: When a cell writes to stderr.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as own:
        # Files instead of ports, and nobody's settings: the same on every machine, however many run at a time.
        manager = AsyncKernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(Path(own) / "kernel.json")
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=SECONDS_PER_CELL,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
        )
        client.execute(
            cleanup_kc=True,
            env={**os.environ, "IPYTHONDIR": own, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    _check_quiet(notebook, path.name)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if _PROGRESS_BAR not in o.get("data", ())]
    return notebook


def _check_quiet(notebook: NotebookNode, name: str) -> None:
    for place, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                raise ValueError(f"{name}, cell {place} wrote to stderr: {output.text}")


def main(files: list[str]) -> None:
    """Execute in place."""
    for path in map(Path, files) if files else notebooks():
        start = time.perf_counter()
        nbformat.write(executed(path), path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
