"""Run by the lab's interpreter inside the image: its tools are there, no framework is, and nothing slow is imported."""

import importlib.util
import sys

import jupyterlab.labapp
import nvitop
import papermill

import rocmlab

slow = {"rfc3987_syntax", "lark"} & set(sys.modules)
assert not slow, slow
assert importlib.util.find_spec("tensorflow") is None
assert importlib.util.find_spec("torch") is None
print("jupyterlab", jupyterlab.labapp.__version__, "papermill", papermill.__version__)
print("nvitop", nvitop.__version__, "rocmlab", rocmlab.__version__)
