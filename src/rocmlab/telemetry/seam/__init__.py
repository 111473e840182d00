"""AMD GPUs for programs that know NVIDIA's NVML alone: an object in place of the library, in one process only.

nvidia-ml-py keeps the library in the global `pynvml.nvmlLib` and looks every function up in it by name; any object with
such functions will do. nvitop, gpustat and nvitop-exporter are started unchanged by `__main__`, after `install` has put
a `library.Library` there. Nothing is installed: other processes, children included, see no NVML.
"""
