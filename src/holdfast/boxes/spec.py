"""The description of a wanted box. Defined in `holdfast.api`, which server and client share."""

from holdfast.api.box_spec import *  # noqa: F403
