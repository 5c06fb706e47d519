"""Ids of threads and entries, shared by server and client."""

from holdfast.api.ids import *  # noqa: F403
