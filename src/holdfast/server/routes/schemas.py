"""The base of requests and answers that are pydantic models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from holdfast.api.document import camel_case


class Model(BaseModel):
    model_config = ConfigDict(alias_generator=camel_case, populate_by_name=True, extra="forbid")
