"""The errors of boxes. They are defined in `holdfast.api`, which server and client share."""

from holdfast.api.errors.boxes import *  # noqa: F403
