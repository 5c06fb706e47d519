"""What a box is asked to be. Defined where server and client share it."""

from holdfast.api.box_spec import *  # noqa: F403
