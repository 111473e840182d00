"""What JupyterHub's process runs with: `rocmlab hub up` gives it this file, and the decisions in ROCMLAB_HUB_FILE."""

import os
import sys
from pathlib import Path

from rocmlab.hub import administration, authenticators, commands, handlers, spawners
from rocmlab.hub.cgroups import Cgroups
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.container_spawner import ContainerSpawner, names
from rocmlab.hub.devices import devices_of
from rocmlab.hub.native_spawner import NativeSpawner
from rocmlab.hub.notices import Notices
from rocmlab.hub.queue import Queue
from rocmlab.hub.uids import Uids
from rocmlab.kernels.leases import Leases

c = get_config()  # noqa: F821  # traitlets defines it

found = Configuration.read(Path(os.environ["ROCMLAB_HUB_FILE"]))
state = Path(found.state)

c.JupyterHub.bind_url = found.url
if found.certificate:
    c.JupyterHub.ssl_key = c.JupyterHub.ssl_cert = found.certificate  # one file has both
# For labs and the proxy; the address is the loopback, or that of the labs' own network.
c.JupyterHub.hub_bind_url = f"http://{found.hub_address}:{found.hub_port}"
c.ConfigurableHTTPProxy.command = list(found.node)
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{found.proxy_port}"
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{state / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie-secret")
notices = Notices(state, Path(found.root))
c.JupyterHub.template_paths = [str(Path(handlers.__file__).parent / "templates")]
c.JupyterHub.template_vars = {"notices": lambda user: notices.shown() if user else []}
if found.root != "/":
    c.JupyterHub.template_vars["announcement"] = "SIMULATED GPUs: the CPU computes"
# Labs run on when the hub ends, for whatever reason; the next one finds them again.
c.JupyterHub.cleanup_servers = False
c.JupyterHub.concurrent_spawn_limit = 0  # those who wait for GPUs are being started all the time
c.JupyterHub.active_server_limit = 0
c.JupyterHub.extra_handlers = [*handlers.ROUTES, *administration.ROUTES]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 3}

queue = Queue(Leases(Path(found.leases)), lambda: devices_of(found))
spawners.WithGpus.settings_of_hub = found
spawners.WithGpus.gpu_queue = queue
spawners.WithGpus.notices = notices
ContainerSpawner.uids = Uids.of_hub(state, found.access)
c.Spawner.options_form = spawners.options_form
c.Spawner.options_from_form = spawners.options_from_form  # DockerSpawner's own takes an image alone
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = found.limits.wait_seconds + 600
c.Spawner.http_timeout = 120
c.Spawner.consecutive_failure_limit = 0
c.Spawner.poll_interval = 5  # another user may get the port or address of a lab that has ended, so its route goes soon
if found.runtime == "native":
    c.JupyterHub.spawner_class = NativeSpawner
    NativeSpawner.cgroups = Cgroups(found.name)
    c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL", "TZ"]
else:
    c.JupyterHub.spawner_class = ContainerSpawner
    c.DockerSpawner.image = found.image
    c.DockerSpawner.pull_policy = "never"  # it was built here; a registry may have another of this name
    c.DockerSpawner.network_name = found.network
    c.DockerSpawner.use_internal_ip = True
    c.DockerSpawner.remove = True
    c.DockerSpawner.name_template = f"{found.name}-{{username}}"
    c.DockerSpawner.extra_create_kwargs = names
    c.DockerSpawner.mem_limit = found.limits.memory_bytes
    c.DockerSpawner.cpu_limit = found.limits.cpus
    c.Spawner.env_keep = []

authenticators.configure(c, found, state)

# `rocmlab hub status`, `message`, `drain` and `stop` are this service; its token is in a file of the hub's.
command_scopes = ["admin-ui", "admin:servers", "list:users"]
c.JupyterHub.services = [{"name": commands.SERVICE, "api_token": commands.token(state)}]
c.JupyterHub.load_roles = [
    {"name": commands.SERVICE, "scopes": command_scopes, "services": [commands.SERVICE]},
    *authenticators.roles(found.access),
]
if queue.devices():
    counts = {"PYTHONPATH": os.environ["PYTHONPATH"], "ROCMLAB_HUB_FILE": os.environ["ROCMLAB_HUB_FILE"]}
    counts |= {name: os.environ[name] for name in ("ROCMLAB_ROOT",) if name in os.environ}
    command = [sys.executable, "-P", "-m", "rocmlab.hub.usage"]
    c.JupyterHub.services.append({"name": "rocmlab-usage", "command": command, "environment": counts})
if found.limits.idle_seconds:
    interval = spawners.activity_seconds(found.limits.idle_seconds)
    c.JupyterHub.last_activity_interval = interval
    options = [f"--timeout={found.limits.idle_seconds}", f"--cull-every={max(5, interval)}"]
    # Labs that computed while the hub was stopped have not reported it yet.
    command = [sys.executable, "-P", "-m", "rocmlab.hub.culling", str(2 * interval), *options]
    culler = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    c.JupyterHub.services.append({"name": "idle-culler", "command": command, "environment": culler})
    scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
    c.JupyterHub.load_roles.append({"name": "idle-culler", "scopes": scopes, "services": ["idle-culler"]})

if found.extra:
    load_subconfig(found.extra)  # noqa: F821  # traitlets defines it
authenticators.block_others(c, found.access, state / "jupyterhub.sqlite")
