"""The errors of interpreters. They are defined where server and client share them."""

from holdfast.api.errors.interpreters import *  # noqa: F403
