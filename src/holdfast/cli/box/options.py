"""The options for the machine that a box is, shared by all commands that create boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.cli.errors import read_value
from holdfast.cli.network_options import (
    AllowOption,
    BandwidthOption,
    ConnectionsOption,
    NetworkName,
    SecretOption,
    parse_policy,
)
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.terminal.sizes import parse_size


@dataclass(frozen=True)
class BoxOptions(OptionGroup):
    provider: Annotated[str | None, Option(metavar="NAME", help="Provider of the box. Default: local.")] = None
    image: Annotated[str | None, Option(metavar="IMAGE", help="Image to start from. Default: the provider's.")] = None
    cpu: Annotated[float | None, Option(metavar="CORES", help="CPU cores, such as 0.5 or 2.")] = None
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory, such as 512M or 2G.")] = None
    disk: Annotated[str | None, Option(metavar="SIZE", help="Disk space, such as 10G.")] = None
    pids: Annotated[int | None, Option(metavar="COUNT", help="Most processes and threads at once.")] = None
    network: Annotated[NetworkName | None, Option(help="What the box may reach. Default: none.")] = None
    allow: AllowOption = None
    bandwidth: BandwidthOption = None
    connections: ConnectionsOption = None
    secret: SecretOption = None

    def to_json(self) -> dict[str, Any]:
        """The options that are on the command line, as the API takes them."""
        values: dict[str, Any] = {
            "provider": self.provider,
            "image": self.image,
            "cpu": self.cpu,
            "memory": read_value(parse_size, self.memory),
            "disk": read_value(parse_size, self.disk),
            "pids": self.pids,
        }
        if self.network or self.allow or self.bandwidth or self.connections or self.secret:
            policy = parse_policy(self.network, self.allow, self.bandwidth, self.connections, self.secret)
            values["network"] = policy.to_json()
        return {name: value for name, value in values.items() if value is not None}
