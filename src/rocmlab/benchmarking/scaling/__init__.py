"""How training scales over several GPUs, measured: PyTorch's DDP and Keras on JAX, by `rocmlab bench multi-gpu`.

`networks`, `ddp` and `keras_jax` belong to processes of their own, in PyTorch's environment; nothing else imports them.
"""
