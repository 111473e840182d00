"""The network of Docker in which the labs of a hub are."""

from __future__ import annotations

from rocmlab.base import addresses
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import process


class Network:
    """The network of the hub's containers: they reach the hub, and not each other."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self) -> str:
        """Return this host's address in it; it is made where it is missing.

        Raises:
            RocmlabError: the engine refuses.
        """
        template = "{{(index .IPAM.Config 0).Gateway}}"
        inspect = ["docker", "network", "inspect", "--format", template, self.name]
        code, output = process.capture(inspect)
        if code:
            option = ["--opt", "com.docker.network.bridge.enable_icc=false"]
            code, output = process.capture(["docker", "network", "create", *option, self.name])
            code, output = process.capture(inspect) if code == 0 else (code, output)
        if code or not addresses.is_address(output.strip()):
            raise RocmlabError(f"the network {self.name} cannot be made", output.strip()[-400:], "docker network ls")
        return output.strip()
