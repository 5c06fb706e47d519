"""Models: their list, their encrypted keys, and the gateway through which agents in boxes use them without a key."""

from holdfast.api.errors.models import InvalidModel, ModelError, ModelFailed, ModelKeyMissing, ModelNotFound
from holdfast.egress.models.budgets import Budgets
from holdfast.egress.models.catalog import PROVIDERS
from holdfast.egress.models.completion import Completion, Message, ask
from holdfast.egress.models.gateway import Answered, GatewayLimits, ModelGateway, OnAnswer
from holdfast.egress.models.journal import ThreadJournal
from holdfast.egress.models.ledger import load_from
from holdfast.egress.models.meter import Meter, Terms
from holdfast.egress.models.model import Model, ModelChoice
from holdfast.egress.models.prices import Prices
from holdfast.egress.models.probe import Probe, probe
from holdfast.egress.models.registry import Endpoint, Models
from holdfast.egress.models.upstream import LoopbackUpstream, NetworkUpstream, Upstream

__all__ = [
    "PROVIDERS",
    "Answered",
    "Budgets",
    "Completion",
    "Endpoint",
    "GatewayLimits",
    "InvalidModel",
    "LoopbackUpstream",
    "Message",
    "Meter",
    "Model",
    "ModelChoice",
    "ModelError",
    "ModelFailed",
    "ModelGateway",
    "ModelKeyMissing",
    "ModelNotFound",
    "Models",
    "NetworkUpstream",
    "OnAnswer",
    "Prices",
    "Probe",
    "Terms",
    "ThreadJournal",
    "Upstream",
    "ask",
    "load_from",
    "probe",
]
