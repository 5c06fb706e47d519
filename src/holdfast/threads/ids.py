"""Ids of threads and entries. Defined where server and client share them."""

from holdfast.api.ids import *  # noqa: F403
