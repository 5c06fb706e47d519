"""Figures of user code, as PNG files."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 32


def take_figures(folder: str) -> "list[dict[str, Any]]":
    """Write the open figures of matplotlib to files, and close them, so that each is returned once."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    taken: list[dict[str, Any]] = []
    try:
        for number in pyplot.get_fignums()[:_MOST]:
            os.makedirs(folder, exist_ok=True)
            path = "%s/figure-%d.png" % (folder, number)
            pyplot.figure(number).savefig(path, format="png", bbox_inches="tight")
            size = os.stat(path).st_size
            taken.append({"name": "figure-%d" % number, "media": "image/png", "path": path, "size": size})
        pyplot.close("all")
    except Exception as error:
        sys.stderr.write("a figure could not be saved: %s\n" % error)
    return taken
