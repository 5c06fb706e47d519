"""The errors of agents. They are defined where server and client share them."""

from holdfast.api.errors.agents import *  # noqa: F403
