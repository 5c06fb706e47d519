"""Errors of models. None of them holds a key."""

from __future__ import annotations

from holdfast.api.errors import Conflict, InvalidRequest, NotFound, Refused, ServerFailed


class ModelError(Refused):
    """The base of errors of models."""


class InvalidModel(InvalidRequest, ModelError):
    """A name, URL, key or number is invalid."""

    status = 422
    code = "invalid_model"


class ModelNotFound(NotFound, ModelError):
    code = "model_not_found"


class ModelKeyMissing(Conflict, ModelError):
    """The provider requires a key, and there is none, or it can no longer be decrypted."""

    code = "model_key_missing"


class ModelFailed(ServerFailed, ModelError):
    """The model did not answer."""

    status = 502
    code = "model_failed"
