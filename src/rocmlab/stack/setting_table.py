"""Every setting in one table: `up --help`, the documentation and `.env` are made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One name that a user may set."""

    name: str
    default: str  # empty: see `otherwise`
    meaning: str
    otherwise: str = ""  # what holds where no default is fixed
    details: str = ""  # for the documentation, in Markdown
    page: str = ""  # of docs/, that explains it

    @property
    def usual(self) -> str:
        """What holds where the user has chosen nothing, as plain text."""
        return self.default or self.otherwise.replace("`", "")


SETTINGS = (
    Setting("BACKEND", "auto", "the hardware to use: rocm, cuda, metal, cpu, or auto"),
    Setting(
        "RUNTIME",
        "auto",
        "where the lab runs: docker, podman, native (a virtual environment), or auto",
        details="`auto` takes the first of these that works.",
        page="engines.md",
    ),
    Setting(
        "GPUS",
        "all",
        "the GPUs the lab gets: all, none, indices (0,2 or 0-3), PCI addresses, or unique ids",
        details="The numbers are those of HIP.",
    ),
    Setting(
        "GPU_PASSTHROUGH",
        "nodes",
        "how AMD GPUs are passed to Docker: nodes (device files) or cdi (CDI names)",
        page="engines.md",
    ),
    Setting(
        "LEASES_DIR",
        "/run/lock/rocmlab",
        "the host's folder of leases: the same for all labs and users, so that no two take one GPU",
        details="An absolute path on a local file system. A simulated host has its own, below its root.",
        page="kernels.md",
    ),
    Setting(
        "ROCMLAB_ROOT",
        "",
        "the folder of a simulated host; empty or /: this machine again",
        otherwise="this machine",
        details="Its GPUs are shown as SIMULATED, and the CPU computes; in the project's folder `scripts/rocmlab "
        "devices` and `cdi` show it also.",
        page="simulate.md",
    ),
    Setting("PORT", "8888", "the port of JupyterLab on 127.0.0.1"),
    Setting(
        "SHARE",
        "",
        "the folder or volume that is kept when the lab is removed",
        otherwise="the volume `share` in a container, `./share` natively",
        details="The word `share` is the volume, anything else a folder.",
    ),
    Setting("NOTEBOOKS_DIR", "./notebooks", "the folder shown as work/ in JupyterLab"),
    Setting(
        "JUPYTER_TOKEN",
        "",
        "the token that JupyterLab requires",
        otherwise="256 random bits, made once",
        details="It is replaced if another process held the lab's port.",
    ),
    Setting(
        "METRICS_TOKEN",
        "",
        "a token that allows only reading the metrics",
        otherwise="256 random bits, made once",
        details="For Prometheus; it is replaced if another process held the lab's port.",
        page="monitoring.md",
    ),
    Setting(
        "ALLOWED_HOSTS",
        "",
        "names or addresses, separated by commas, under which your reverse proxy serves the lab",
        otherwise="none",
        details="For example `lab.example.org,192.168.1.20`. Requests under any name but these and the loopback's get "
        "403.",
        page="security.md",
    ),
    Setting(
        "LAB_BASE_URL",
        "",
        "the path below which the lab's pages are (/lab1/), for a reverse proxy that serves more than the lab",
        otherwise="`/`",
        details="As Jupyter's own `base_url`; the proxy must not remove it from requests.",
        page="remote.md",
    ),
    Setting(
        "BIND",
        "",
        "an address of this host at which the lab also answers other machines, over TLS; 0.0.0.0 or :: for all",
        otherwise="127.0.0.1 alone",
        details="Nothing that is not encrypted leaves the host: `PORT` stays on the loopback.",
        page="remote.md",
    ),
    Setting("TLS_PORT", "8443", "the port of JupyterLab at BIND", page="remote.md"),
    Setting(
        "TLS_CERT",
        "",
        "your own certificate for BIND, with its chain, as a PEM file",
        otherwise="one is made, and its fingerprint printed",
        page="remote.md",
    ),
    Setting("TLS_KEY", "", "its private key, a PEM file without a password", otherwise="one is made", page="remote.md"),
    Setting(
        "IMAGE",
        "full",
        "for AMD GPUs: full (on rocm/tensorflow, every GPU), slim (PyTorch for exactly this host's GPUs) or debian "
        "(Debian's ROCm)",
        page="images.md",
    ),
    Setting(
        "GFX",
        "",
        "the ISA targets of a slim or Debian image for another host: gfx1100, or several with commas",
        otherwise="those of this host's GPUs",
        page="images.md",
    ),
    Setting(
        "BASE_IMAGE", "", "the image to build on, by tag or digest", otherwise="by backend and GPU", page="images.md"
    ),
    Setting(
        "PULL",
        "off",
        "on: where cosign verifies the released image, and it is made from the same files and settings, it is used in "
        "place of a build",
        details="Which was used, and why, is printed. `make build` always builds.",
        page="images.md",
    ),
    Setting(
        "PULL_FROM",
        "",
        "where released images are: a repository on GitHub, OWNER/NAME; with PULL_KEY a registry and a path in it",
        otherwise="the repository that this clone comes from",
        page="images.md",
    ),
    Setting(
        "PULL_KEY",
        "",
        "cosign's public key, a file, for images that you signed with a key of your own",
        otherwise="none: the release workflow of that repository must have signed them",
        page="images.md",
    ),
    Setting(
        "TORCH_INDEX",
        "",
        "where the PyTorch wheel comes from; empty: pip's own index",
        otherwise="PyTorch's own, by backend",
        details="No credentials in it: the image's history shows it, `PIP_CONFIG` does not.",
    ),
    Setting(
        "JAX_PACKAGES",
        "",
        "pip's arguments for JAX's plugin for the GPU, of the locked JAX's version",
        otherwise="none: JAX on the CPU",
        details="For the kernel `torch`, for example `jax-rocm7-plugin==0.10.2 jax-rocm7-pjrt==0.10.2` or "
        "`jax-cuda13-plugin[with-cuda]==0.10.2`; the build fails if JAX would not find it.",
        page="images.md",
    ),
    Setting(
        "EXTRAS",
        "",
        "what JupyterLab gets beside: git, lsp, tensorboard, proxy, or several with commas",
        otherwise="none",
        details="Empty: none again.",
        page="extras.md",
    ),
    Setting(
        "TENSORFLOW_INDEX",
        "",
        "where native ROCm gets tensorflow-rocm (pip --find-links)",
        otherwise="AMD's, by the host's ROCm version",
    ),
    Setting(
        "WHEELS",
        "",
        "a folder of wheels to use before any index",
        otherwise="the folder in `PIP_FIND_LINKS`, else `docker/wheels`",
    ),
    Setting(
        "CA_BUNDLE",
        "",
        "certificates for a proxy that inspects TLS; a build secret",
        otherwise="`PIP_CERT`, `SSL_CERT_FILE`, or `cert` of pip.conf",
        details="It is never in a layer.",
    ),
    Setting(
        "PIP_CONFIG",
        "",
        "a pip.conf for the build, for example for a mirror; a build secret",
        otherwise="`PIP_CONFIG_FILE`, or your pip.conf",
    ),
    Setting(
        "NB_UID", "", "the user id of the lab's user in the container", otherwise="the owner of the notebooks folder"
    ),
    Setting("NB_GID", "", "the group id of the lab's user in the container", otherwise="100"),
    Setting(
        "MIN_FREE_DISK_GB",
        "5",
        "below this much free space (GB) the lab warns and no run starts; 0: never",
        details="It counts for the disks of the share and of the notebooks. The warning is in the panel, `status`, "
        "the doctor and `make up`; a run under way starts no further job.",
        page="backup.md",
    ),
    Setting("SHM_SIZE", "", "the size of /dev/shm in the container (data loaders, RCCL)", otherwise="8gb"),
    Setting(
        "PIDS_LIMIT",
        "",
        "how many processes and threads the container may have; -1: no limit",
        otherwise="4096, and 256 for each CPU",
        details="A fork bomb ends there. Frameworks start several threads for each CPU, so the default grows with "
        "them.",
    ),
    Setting(
        "MEMORY_LIMIT",
        "",
        "how much memory the container may have (64gb), without swap; empty: no limit",
        otherwise="none",
        details="The process that needs more is killed, not slowed down.",
    ),
    Setting(
        "LOG_MAX_SIZE",
        "10m",
        "the size at which the lab's log begins a new file; a container's engine keeps three, the native lab two",
        details="The log is that of `make logs`. Podman keeps one file. The native lab reads it when it starts.",
    ),
    Setting(
        "CULL_IDLE_GPU_KERNELS_SECONDS",
        "0",
        "shut down a kernel that has GPUs and was idle for that many seconds, after a warning; 0: never",
        page="kernels.md",
    ),
    Setting(
        "WARM_KERNELS",
        "on",
        "fork JupyterLab's kernels from a process that has imported the framework: on or off",
        details="`off`: each kernel imports its framework itself. Only on Linux.",
        page="warm.md",
    ),
    Setting(
        "IDLE_GPU_WARNING_SECONDS",
        "600",
        "the panel warns of a kernel that is idle for that many seconds and holds GPU memory; 0: never",
        page="panel.md",
    ),
    Setting(
        "RECORD_GPUS",
        "off",
        "on: the panel's server reads the GPUs continuously, so that the history is complete; on or off",
        details="Otherwise it reads them each second while a panel is open, and without one every ten seconds those "
        "that a kernel has leased or that are awake in any case. The history is that of the charts and the 24 "
        "hours of `api/history`.",
        page="panel.md",
    ),
    Setting(
        "RECORD_OUTPUTS",
        "on",
        "keep what a cell prints while no page is connected, in the notebook's file: on or off",
        page="everyday.md",
    ),
    Setting(
        "NOTIFY",
        "",
        "whom a run reports its end to: the address of a webhook (https://…), or a command",
        otherwise="no one",
        details="It may be a secret: it is never shown, and not in the environment of notebooks.",
        page="running.md",
    ),
    Setting(
        "NOTIFY_AFTER_SECONDS",
        "60",
        "runs that take less time are not reported; 0: every run is",
        page="running.md",
    ),
    Setting(
        "PRICE_PER_KWH",
        "",
        "the price of a kWh, such as `0.30 EUR`: reports of runs and the panel then show what the GPUs cost",
        otherwise="no amounts are shown",
        details="A number and a currency: three letters, or one of € $ £ ¥.",
        page="cell-cost.md",
    ),
    Setting(
        "PRICE_PER_GPU_HOUR",
        "",
        "the price of an hour of one GPU, such as `1.20 EUR`, added to that of the energy if both are set",
        otherwise="GPU time costs nothing",
        page="cell-cost.md",
    ),
    Setting(
        "GPU_METRICS_NAMES",
        "rocmlab",
        "names of the metrics: rocmlab, amd (as AMD's device-metrics-exporter has them), or both",
        page="monitoring.md",
    ),
    Setting("PROMETHEUS_IMAGE", "prom/prometheus:v3.11.3", "the image of `make monitoring`'s Prometheus"),
    Setting("PROMETHEUS_PORT", "9090", "its port on 127.0.0.1"),
    Setting("GRAFANA_IMAGE", "grafana/grafana:12.3.1", "the image of `make monitoring`'s Grafana"),
    Setting("GRAFANA_PORT", "3000", "its port on 127.0.0.1"),
    Setting(
        "GRAFANA_PASSWORD",
        "",
        "the password of Grafana's user admin",
        otherwise="192 random bits, made once",
        details="It counts at Grafana's first start only; later it is changed in Grafana.",
    ),
    Setting(
        "CLUSTER",
        "off",
        "off, head (this machine starts a Ray cluster), or HOST:PORT of the head whose cluster this machine joins",
        details="`make cluster-up`, `cluster-join` and `cluster-down` set it.",
        page="cluster.md",
    ),
    Setting(
        "CLUSTER_TOKEN",
        "",
        "what every node of the cluster must know",
        otherwise="256 random bits, made once by the head",
    ),
    Setting(
        "CLUSTER_ADDRESS",
        "",
        "this machine's own address in the cluster",
        otherwise="that of the route to the head; on the head, of the default route",
        details="For a machine that has several.",
    ),
    Setting("CLUSTER_PORT", "6379", "the head's port, and where the node's other ports begin", page="cluster.md"),
    Setting("CLUSTER_NETWORK", "host", "the container's network while it is a node: host, bridge, or one of your own"),
    Setting("HUB_PORT", "8000", "the port of JupyterHub (`rocmlab hub`)", page="hub.md"),
    Setting(
        "HUB_BIND",
        "",
        "an address of this host at which JupyterHub answers, over TLS; 0.0.0.0 or :: for all",
        otherwise="127.0.0.1, without TLS",
        details="With the certificate of `TLS_CERT`, else one that is made.",
        page="hub.md",
    ),
    Setting(
        "HUB_AUTH",
        "pam",
        "how users of JupyterHub log in: pam (accounts of this host), native (sign-up, an administrator approves) or "
        "oauth",
        page="hub.md",
    ),
    Setting("HUB_ADMINS", "", "administrators of JupyterHub, separated by commas", otherwise="none", page="hub.md"),
    Setting(
        "HUB_USERS",
        "",
        "who may use JupyterHub, separated by commas; *: everyone who can log in",
        otherwise="the administrators alone",
        details="With `HUB_AUTH=native` an administrator approves instead.",
        page="hub.md",
    ),
    Setting(
        "HUB_DATA",
        "",
        "a folder of this host that every lab of JupyterHub shows as data/, and none can change",
        otherwise="none",
        page="hub.md",
    ),
    Setting(
        "HUB_COMMON",
        "",
        "a folder of this host that every lab of JupyterHub shows as common/, and every user can change",
        otherwise="none",
        page="hub.md",
    ),
    Setting(
        "HUB_MEMORY_LIMIT",
        "",
        "how much memory each lab of JupyterHub may have (64gb), without swap; natively by cgroup v2",
        otherwise="none",
        page="hub.md",
    ),
    Setting(
        "HUB_CPU_LIMIT",
        "",
        "how many CPUs each lab of JupyterHub may use (2.5 is possible); natively by cgroup v2",
        otherwise="none",
        page="hub.md",
    ),
    Setting(
        "HUB_PIDS_LIMIT",
        "",
        "how many processes and threads each lab of JupyterHub may have (natively: each user)",
        otherwise="in Docker 4096, and 256 for each CPU; natively none",
        page="hub.md",
    ),
    Setting(
        "HUB_IDLE_SECONDS",
        "0",
        "stop a lab of JupyterHub after that many seconds in which no one and no kernel did anything; 0: never",
        page="hub.md",
    ),
    Setting(
        "HUB_WAIT_SECONDS",
        "3600",
        "how long a lab of JupyterHub waits for free GPUs before its start fails",
        page="hub.md",
    ),
    Setting(
        "HUB_CONFIG",
        "",
        "a file of JupyterHub configuration of your own, read after rocmlab's; HUB_AUTH=oauth needs one",
        otherwise="none",
        details="It holds secrets and runs as the hub: it must belong to you, and no one else may write it.",
        page="hub.md",
    ),
    Setting("PYTHON", "", "the interpreter of the native lab (3.11 to 3.13)", otherwise="python3"),
    Setting(
        "COMPOSE_PROJECT_NAME",
        "",
        "the name of containers, network and volume",
        otherwise="`rocmlab-` and a hash of the folder, made once",
        details="Under Podman also.",
    ),
)
DEFAULTS = {setting.name: setting.default for setting in SETTINGS if setting.default}
NAMES = tuple(setting.name for setting in SETTINGS)
OF_ONE_COMMAND = (  # what make passes besides: no settings, and nothing that a lab may inherit
    *("NOTEBOOKS", "PARAMS", "RUN", "RUN_FOLDER", "BENCH", "TESTS", "ENGINE", "HEAD", "FORCE", "WHEN"),
    *("TO", "FROM", "ALL", "RUNS"),
)
