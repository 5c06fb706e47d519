"""Builds images: from a recipe, step by step in a box, or a Debian system from its packages.

Uses boxes, images and snapshots only through their contracts, which a `BuildHost` provides.
"""

from holdfast.api.progress import Progress, Silent
from holdfast.images.base import BASE
from holdfast.images.build_host import BuildHost
from holdfast.images.builder import build
from holdfast.images.errors import (
    BadPackage,
    InvalidRecipe,
    MirrorFailed,
    NoSources,
    NotVerified,
    StepFailed,
    Unresolvable,
)
from holdfast.images.plan import Plan, make_plan
from holdfast.images.recipe import Recipe, parse_recipe, read_recipe

__all__ = [
    "BASE",
    "BadPackage",
    "BuildHost",
    "InvalidRecipe",
    "MirrorFailed",
    "NoSources",
    "NotVerified",
    "Plan",
    "Progress",
    "Recipe",
    "Silent",
    "StepFailed",
    "Unresolvable",
    "build",
    "make_plan",
    "parse_recipe",
    "read_recipe",
]
