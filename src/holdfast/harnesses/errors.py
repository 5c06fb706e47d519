"""The errors of agents. They are defined in `holdfast.api`, which server and client share."""

from holdfast.api.errors.agents import *  # noqa: F403
