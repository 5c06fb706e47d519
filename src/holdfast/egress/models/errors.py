"""The errors of models. They are defined where server and client share them."""

from holdfast.api.errors.models import *  # noqa: F403
