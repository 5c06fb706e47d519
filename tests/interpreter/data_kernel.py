"""Our Jupyter kernel with numpy, pandas and matplotlib in its box: a program that the tests of it start."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp
from tests.data_packages import IN_BOX, data_packages

from holdfast.boxes.spec import BoxSpec
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.jupyter import BoxKernel


class DataKernel(BoxKernel):
    def make_interpreter(self) -> Interpreter:
        return Interpreter(spec=BoxSpec(mounts=(data_packages(),), env={"PYTHONPATH": IN_BOX}), timeout=self.timeout)


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=DataKernel)
