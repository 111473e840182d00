#!/usr/bin/env bash
# start-notebook.sh OPTIONS...: start JupyterLab; options, and those in NOTEBOOK_ARGS, go to it.
set -euo pipefail
read -r -a arguments <<<"${NOTEBOOK_ARGS:-}"
if [[ ${JUPYTERHUB_API_TOKEN:-} ]]; then # a lab of a hub, which logs in its user: no token of its own
  exec /opt/rocmlab/bin/python -I -m rocmlab.hub.lab /opt/rocmlab/bin/jupyterhub-singleuser "${arguments[@]}" "$@"
fi
if [[ ! -s ${JUPYTER_TOKEN_FILE:-} ]]; then
  printf 'error: %s\n  why: %s\n  fix: %s\n' "JUPYTER_TOKEN is empty" \
    "the notebooks run any code, so the lab never listens without a token" \
    "run \`make up\`, which writes one to .env (docker run: -e JUPYTER_TOKEN=\$(openssl rand -hex 32))" >&2
  exit 2
fi
command=(/opt/rocmlab/bin/jupyter-lab "${arguments[@]}" "$@")
if [[ ${CLUSTER:-off} != off ]]; then exec start-cluster.sh "${command[@]}"; fi
exec "${command[@]}"
