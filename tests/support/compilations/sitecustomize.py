"""Makes a Python process write down what numba compiles for it, or loads from its cache.

For processes whose PYTHONPATH begins with this folder. They append to the file that the environment
variable COMPILATIONS names, one line for each function.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from numba.core.dispatcher import Dispatcher

compile_for = Dispatcher.compile


def compile_and_record(self: Any, signature: Any) -> Any:
    """`Dispatcher.compile`, recorded."""
    with open(os.environ["COMPILATIONS"], "a") as file:
        function = self.py_func
        file.write(f"{os.path.basename(os.path.dirname(sys.argv[0]))}: "
                   f"{function.__module__}.{function.__qualname__}\n")  # fmt: skip
    return compile_for(self, signature)


Dispatcher.compile = compile_and_record  # type: ignore[method-assign, assignment]
