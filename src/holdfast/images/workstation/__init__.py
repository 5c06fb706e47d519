"""The image of a session's box: a desktop with a browser, an editor, and the tools of the base image."""

from __future__ import annotations

from pathlib import Path
from typing import Final

WORKSTATION: Final = "holdfast/workstation"
RECIPE: Final = Path(__file__).with_name("image.toml")
