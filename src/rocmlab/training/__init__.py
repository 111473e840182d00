"""What notebooks import: data sets, recorded results, the device in use, several GPUs.

Nothing here imports a framework before the notebook has done so.
"""
