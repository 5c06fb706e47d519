"""Our Jupyter kernel with numpy, pandas and matplotlib in its box: a program that the tests of it start."""

from __future__ import annotations

from typing import Any

from ipykernel.kernelapp import IPKernelApp
from tests.installed_packages import IN_BOX, data_packages

from holdfast.api.box.spec import BoxSpec
from holdfast.interpreter.jupyter import BoxKernel


class DataKernel(BoxKernel):
    def options(self) -> dict[str, Any]:
        return super().options() | {"spec": BoxSpec(mounts=(data_packages(),), env={"PYTHONPATH": IN_BOX})}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=DataKernel)
