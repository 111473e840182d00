"""JupyterLab in every runtime: `rocmlab.lab.install` puts this file into its environment, for Jupyter to execute.

The token comes from the file JUPYTER_TOKEN_FILE; the native lab gives address, port and folder on the command line.
"""

import os
from pathlib import Path

from rocmlab.base import extras, hosts
from rocmlab.base.errors import RocmlabError

c = get_config()  # noqa: F821  # traitlets defines it

if os.environ.get("ROCMLAB_RUNTIME") in ("docker", "podman"):
    if os.environ.get("CLUSTER_NETWORK") == "host":  # no network of the container's own, whose port would be published
        c.ServerApp.ip = "127.0.0.1"
        c.ServerApp.port = int(os.environ.get("PORT", "8888"))
    else:
        # All addresses of the container; the engine publishes the port on the host's loopback only.
        c.ServerApp.ip = "0.0.0.0"
    # Shows work/ and share/.
    c.ServerApp.root_dir = "/home/jovyan"
    # The file browser and the launcher begin here; the native lab has this on its command line.
    if os.path.isdir("/home/jovyan/work"):
        c.FileContentsManager.preferred_dir = "work"

if not hosts.is_behind_hub(os.environ):  # else names and cookies are the hub's business
    # Names that DNS could point here are rejected; should our extension not load, by Jupyter's own check.
    c.ServerApp.allow_remote_access = False
    try:
        c.ServerApp.local_hostnames = [*hosts.ALWAYS, *hosts.parse(os.environ.get(hosts.SETTING, ""))]
    except RocmlabError:
        c.ServerApp.local_hostnames = list(hosts.ALWAYS)
    try:
        c.ServerApp.base_url = hosts.parse_base_url(os.environ.get(hosts.BASE_URL, ""))
    except RocmlabError as err:
        raise SystemExit(str(err)) from err
    # Pages of other sites cannot use the login; with "Strict" a link to the lab in a mail would ask for the token.
    c.IdentityProvider.cookie_options = {"samesite": "Lax"}
# The configured port, or none: users would not find the lab at another one.
c.ServerApp.port_retries = 0
c.ServerApp.open_browser = False
# A trash folder on a volume would keep the space of what was deleted.
c.FileContentsManager.delete_to_trash = False
# Only the kernels that have a framework: `tensorflow` and `torch`.
c.KernelSpecManager.ensure_native_kernel = False
# The launcher's first card, and what a notebook without a kernel is offered first.
c.MultiKernelManager.default_kernel_name = "torch" if os.environ.get("ROCMLAB_IMAGE_GFX") else "tensorflow"
# Sockets in the runtime directory, which only the lab user may enter; ipykernel warns of open TCP ports, rightly.
c.KernelManager.transport = "ipc"
# jupyter_server counts its pings in milliseconds, tornado reads the same numbers as seconds and warns of them in every
# log. Without pings JupyterLab still reconnects by itself, and the server keeps a kernel's output meanwhile.
# The address may hold the token: other sites do not learn it from the header `Referer`.
c.ServerApp.tornado_settings = {"ws_ping_interval": 0, "headers": {"Referrer-Policy": "same-origin"}}
# The lab is updated by `make up`, not from inside.
c.LabApp.extension_manager = "readonly"
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.news_url = None
# No language server is looked for, which takes time at every start; EXTRAS=lsp names its own.
c.LanguageServerManager.autodetect = False
if os.environ.get(extras.VARIABLE):
    from rocmlab.lab.extras import configure

    configure(c, os.environ, Path(__file__).parents[2])
