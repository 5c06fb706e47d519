"""The errors of boxes. They are defined where server and client share them."""

from holdfast.api.errors.boxes import *  # noqa: F403
