"""What can be wrong with a model that somebody adds or asks for. None of these holds a key."""

from __future__ import annotations

from holdfast.threads.errors import StreamError


class ModelError(StreamError):
    """Base of all."""

    status = 422
    code = "invalid_model"


class InvalidModel(ModelError):
    """A name, URL, key or number that makes no sense."""


class ModelNotFound(ModelError):
    status = 404
    code = "model_not_found"


class ModelKeyMissing(ModelError):
    """The provider wants a key, and none was given, or it cannot be read any more."""

    status = 409
    code = "model_key_missing"


class ModelFailed(ModelError):
    """It was asked, and gave no answer."""

    status = 502
    code = "model_failed"
