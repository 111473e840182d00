#!/usr/bin/env bash
# start.sh COMMAND...: run COMMAND as the lab user, with exactly the groups that open the GPUs passed to this container.
#
# As root it honours NB_UID and NB_GID, joins the lab user to the group of every device node, creates what the share
# lacks (the owner of nothing that exists is changed), runs start-notebook.d, and drops to the lab user. As the lab user
# it checks that the nodes can be opened and that work/ and share/ can be used, puts home and caches on the share and runs
# before-notebook.d. Started by `docker exec` it does only what the command needs. (sudo and su would lose the groups
# given by --group-add: they read /etc/group instead.)
set -euo pipefail
shopt -s nullglob

root=${ROCMLAB_ROOT:-}
root=${root%/}
top=/home/jovyan # what JupyterLab shows: work/ and share/; root's, so that nothing is saved where nothing persists
home=$ROCMLAB_HOME
share_folders=(data models runs cache)
leases=$root/run/lock/rocmlab # the host's, where it is mounted

say() { printf 'rocmlab: %s\n' "$*" >&2; }

fail() { # what, why, fix
  printf 'error: %s\n  why: %s\n  fix: %s\n' "$@" >&2
  exit 2
}

device_nodes() { # the character devices of AMD GPUs; a simulated host (ROCMLAB_ROOT) has plain files instead
  local node
  for node in "$root"/dev/kfd "$root"/dev/dri/renderD* "$root"/dev/dxg "$@"; do
    if [[ -c $node ]]; then echo "$node"; fi
  done
}

run_hooks() { # .sh files are sourced, executables run; a failing hook is reported and the lab starts all the same
  local hook status
  for hook in "/usr/local/bin/$1"/*; do
    status=0
    set +eu
    if [[ $hook == *.sh ]]; then
      # shellcheck disable=SC1090  # which files these are is the user's choice
      source "$hook" || status=$?
    elif [[ -x $hook ]]; then
      "$hook" || status=$?
    fi
    set -eu
    ((status == 0)) || say "ERROR: the hook $hook failed with exit code $status"
  done
}

make_runtime() { # empty: what a killed server left would mislead the health check
  rm -rf "$JUPYTER_RUNTIME_DIR"
  install -d -m 0700 "$JUPYTER_RUNTIME_DIR"
}

keep_secret() { # NAME: move it from its variable, or from the file that the engine provides, to a file of the runtime folder
  local file=${1,,} path=${1}_FILE text=${!1:-}
  file=$JUPYTER_RUNTIME_DIR/${file//_/-}
  path=${!path:-/run/secrets/${1,,}}
  if [[ -z $text && $path != "$file" && -r $path ]]; then text=$(<"$path"); fi
  if [[ $text && ! (-r $file && $text == "$(<"$file")") ]]; then
    rm -f "$file"
    (umask 077 && printf %s "$text" >"$file")
    chmod 0400 "$file"
    if ((EUID == 0)); then chown "$NB_UID:$NB_GID" "$file"; fi
  fi
}

keep_secrets() { # which only the server reads; kernels, terminals and `docker exec` get them neither as variable nor in a log
  if [[ $is_first ]]; then
    keep_secret JUPYTER_TOKEN
    keep_secret METRICS_TOKEN
    keep_secret NOTIFY
    if [[ ${CLUSTER:-off} != off ]]; then keep_secret CLUSTER_TOKEN; fi
  fi
  # The names of rocmlab.base.confidential; a test compares them.
  unset JUPYTER_TOKEN METRICS_TOKEN CLUSTER_TOKEN RAY_AUTH_TOKEN JUPYTER_TOKEN_FILE METRICS_TOKEN_FILE GRAFANA_PASSWORD NOTIFY
}

# -- as root ----------------------------------------------------------------------------------------------------------

use_ids() { # give jovyan the wanted ids; usermod would walk through the whole home, share included
  if [[ ! $NB_UID =~ ^[1-9][0-9]*$ || ! $NB_GID =~ ^[1-9][0-9]*$ ]]; then
    fail "NB_UID=$NB_UID NB_GID=$NB_GID cannot be the lab user's ids" "they are not numbers above 0" \
      "take both lines out of .env, and run \`make up\`"
  fi
  getent group "$NB_GID" >/dev/null || groupadd --gid "$NB_GID" lab
  if [[ $(id -u jovyan):$(id -g jovyan) != "$NB_UID:$NB_GID" ]]; then
    sed -i "s/^jovyan:\([^:]*\):[0-9]*:[0-9]*:/jovyan:\1:$NB_UID:$NB_GID:/" /etc/passwd
  fi
}

lab_groups() { # the lab user's groups, comma separated: users, those of the device nodes, those of --group-add
  local gid nodes gids=(100) given
  mapfile -t nodes < <(device_nodes "$root"/dev/dri/card*)
  if ((${#nodes[@]})); then mapfile -t -O 1 gids < <(stat -c %g "${nodes[@]}"); fi
  # root's own group is joined only for a node that has it: where the host lacks a render group, udev leaves root:root.
  given=$(id -G | tr ' ' '\n' | grep -vx 0 || true)
  for gid in "${gids[@]}" $given; do echo "$gid"; done | sort -nu | paste -sd,
}

name_groups() { # so that `id`, and `docker exec --user jovyan`, know the groups too
  local gid
  for gid in ${1//,/ }; do
    getent group "$gid" >/dev/null || groupadd --gid "$gid" "gpu-$gid"
  done
  if [[ $(id -G jovyan | tr ' ' '\n' | sort -n | paste -sd,) != "$1" ]]; then
    usermod --append --groups "$1" jovyan
  fi
}

is_rootless() { # in a rootless engine "root" is the user who started it
  [[ $(awk 'NR == 1 {print $1 ":" $2}' /proc/self/uid_map) != 0:0 ]]
}

is_new() { # FOLDER: an empty folder of root's, as an engine creates it for a mount; nothing of a user's is in there
  [[ $(stat -c %u "$1") == 0 && -z $(find "$1" -mindepth 1 -maxdepth 1 -print -quit) ]]
}

create_missing() { # the owner and the mode of what exists stay, whoever owns it: it may be a key that only root reads
  local folder name
  if is_rootless; then return; fi
  for folder in "$ROCMLAB_SHARE" "$ROCMLAB_NOTEBOOKS"; do
    if [[ -d $folder ]] && is_new "$folder" && ! chown "$NB_UID:$NB_GID" "$folder" 2>/dev/null; then say "root may not chown $folder"; fi
  done
  # In a share of root's, root creates what is missing. Where others can write they could put a link in its way.
  if [[ $(stat -c %u "$ROCMLAB_SHARE") != 0 || -n $(find "$ROCMLAB_SHARE" -maxdepth 0 -perm /022) ]]; then return; fi
  for name in "${share_folders[@]}" home bench .rocmlab packages; do
    folder=$ROCMLAB_SHARE/$name
    if [[ ! -e $folder && ! -L $folder ]] && mkdir -m 0700 "$folder" 2>/dev/null; then
      chown --no-dereference "$NB_UID:$NB_GID" "$folder"
      if [[ $name != home ]]; then chmod 0775 "$folder"; fi
    fi
  done
}

open_leases() { # an engine makes the source of a mount for root alone, and this one is for every user of the host
  local source
  if is_rootless || ! mountpoint -q "$leases" || ! is_new "$leases"; then return; fi
  # What is really mounted: the name may be another user's link to a folder of root's, whose mode must not change.
  source=$(awk -v at="$leases" '$5 == at {print $4}' /proc/self/mountinfo | tail -n 1)
  case $source in
    /rocmlab | /lock/rocmlab | */run/lock/rocmlab) ;; # the root of /run/lock, of /run, or of / is a file system
    *) return ;;
  esac
  if [[ $(stat -c %a "$leases") == 755 ]]; then chmod 1777 "$leases"; fi
}

become_lab_user() {
  local groups
  use_ids
  groups=$(lab_groups)
  name_groups "$groups"
  if [[ $is_first ]]; then
    create_missing
    open_leases
    make_runtime
    chown "$NB_UID:$NB_GID" "$JUPYTER_RUNTIME_DIR"
    keep_secrets
    run_hooks start-notebook.d
    keep_secrets # which a hook may have set
  fi
  keep_secrets
  export ROCMLAB_FIRST=${is_first:+prepared}
  exec setpriv --reuid "$NB_UID" --regid "$NB_GID" --groups "$groups" \
    --inh-caps=-all --bounding-set=-all --no-new-privs "$0" "$@"
}

# -- as the lab user --------------------------------------------------------------------------------------------------

prove_access() { # one render node that answers "permission denied" hides every GPU from ROCm: report it before Jupyter runs
  local node error fix
  if [[ $ROCMLAB_BACKEND != rocm ]]; then return; fi
  if [[ -z $root && ! -e /dev/kfd && ! -e /dev/dxg ]]; then
    fail "this container has no /dev/kfd" "the rocm backend computes on AMD GPUs, and none was passed" \
      "start it with \`make up\`, or give docker run --device /dev/kfd --device /dev/dri; on the host, \`make doctor\` says why it \
is missing; without a GPU: make up BACKEND=cpu"
  fi
  while read -r node; do
    if ! error=$({ : <>"$node"; } 2>&1); then
      fix="run \`make up\` again, which writes the groups of the device nodes to .env (docker run: --group-add $(stat -c %g "$node")); \
if its mode lacks rw for the group, on the host: sudo chmod g+rw ${node#"$root"}; \`make doctor\` there says which it is"
      if is_rootless; then
        fix="on the host: sudo usermod -aG render,video \$USER, log in again, then: podman system migrate && make up"
      fi
      fail "$node cannot be opened read-write by uid $(id -u): ${error##*: }" \
        "it belongs to group $(stat -c '%g with mode %a' "$node"), and this process is in the groups $(id -G)" "$fix"
    fi
  done < <(device_nodes)
}

gfx_targets() { # gfx1100, gfx90a+gfx942, …: of the GPUs whose render node is here; from KFD's topology, in decimal
  local properties key value version minor
  for properties in "$root"/sys/class/kfd/kfd/topology/nodes/*/properties; do
    version=0 minor=0
    while read -r key value; do
      case $key in
        gfx_target_version) version=$value ;;
        drm_render_minor) minor=$value ;;
      esac
    done < <(cat "$properties" 2>/dev/null) # a GPU that was not passed may refuse
    if ((version)) && [[ -e $root/dev/dri/renderD$minor ]]; then
      printf 'gfx%d%x%x\n' $((version / 10000)) $((version / 100 % 100)) $((version % 100))
    fi
  done | sort -u | paste -sd+
}

owner() { stat -c 'it belongs to uid %u and gid %g, and its mode is %a' "$1" 2>/dev/null || echo "it is not there"; }

is_read_only() { # FOLDER: on a file system that was mounted so on purpose
  [[ ,$(findmnt --noheadings --output OPTIONS --target "$1" 2>/dev/null), == *,ro,* ]]
}

check_folder() { # FOLDER SETTING: the lab's user must be able to write here, and start.sh never changes an owner
  local who uid other=""
  if [[ -w $1 && -x $1 ]]; then return; fi
  who="sudo chown $(id -u)"
  uid=$(stat -c %u "$1")
  if is_rootless; then who="sudo chown \$USER"; elif ((uid)); then other=$'\n       '"or take its owner's uid: make up NB_UID=$uid"; fi
  fail "$1 cannot be written by uid $(id -u), the lab's user" "$(owner "$1"), and the lab changes no owner" \
    "on the host: $who <that folder, of your $2>, and whatever in it the lab is to change$other
       or use another folder: make up $2=/path"
}

check_private() { # FOLDER: settings and programs in the home run as the lab's user, so no one else may write there
  local kind
  kind=$(stat -f -c %T "$1")
  if [[ ! -L $1 && ($kind =~ ^(v9fs|msdos|exfat|fuseblk|smb2|cifs)$ || ! $(find "$1" -maxdepth 0 -perm /022)) ]]; then return; fi
  fail "$1 is not a private folder of the lab's user" \
    "it is a link, or other users can write it ($(owner "$1")); programs and settings in it would run as the lab's user" \
    "look at what is in it; if all of it is yours, on the host: chmod 700 that folder, of your SHARE; else: make up SHARE=/another/folder"
}

open_share() { # what the share lacks is created; what is there must be usable
  local name folder
  for folder in "${share_folders[@]/#/$ROCMLAB_SHARE/}" "$home"; do
    if [[ -d $folder ]]; then continue; fi
    if ! (umask 002 && mkdir "$folder") 2>/dev/null; then check_folder "$ROCMLAB_SHARE" SHARE
    elif [[ $folder == "$home" ]]; then chmod u=rwx,g=,o=,g-s "$folder"; fi
    if [[ ! -d $folder ]]; then
      fail "$folder is not a folder" "the lab needs a folder of this name, and something else has it" \
        "on the host, move it away; or another share: make up SHARE=/path"
    fi
  done
  for folder in "$ROCMLAB_SHARE"/{runs,cache} "$home"; do check_folder "$folder" SHARE; done
  if [[ $home != "$top" ]]; then check_private "$home"; fi # a hub gives its own
  if [[ ! -d $ROCMLAB_NOTEBOOKS ]]; then mkdir "$ROCMLAB_NOTEBOOKS" 2>/dev/null || true; fi # a hub mounts over it
  if ! is_read_only "$ROCMLAB_NOTEBOOKS"; then check_folder "$ROCMLAB_NOTEBOOKS" NOTEBOOKS_DIR; fi
  if [[ $home == "$top" ]]; then return; fi # a hub's, which has both
  for name in work share; do # so that ~/work and ~/share are what they always were
    if [[ ! -e $home/$name && ! -L $home/$name ]]; then ln -s "$top/$name" "$home/$name"; fi
  done
}

check_leases() { # without them two labs would take the same GPU
  if [[ -e /dev/dxg || ($ROCMLAB_BACKEND == cpu && ! $root) ]]; then return; fi
  if ! mountpoint -q "$leases"; then
    say "no other lab of this host sees which GPUs are leased here: its folder /run/lock/rocmlab is not mounted (docs/kernels.md)"
  elif [[ ! -w $leases || ! -x $leases ]]; then
    fail "no GPU can be leased: $leases cannot be written by uid $(id -u)" "$(owner "$leases")" \
      "on the host: echo 'd /run/lock/rocmlab 1777 root root -' | sudo tee /etc/tmpfiles.d/rocmlab.conf && \
sudo systemd-tmpfiles --create /etc/tmpfiles.d/rocmlab.conf; of another LEASES_DIR: sudo chmod 1777 that folder"
  fi
}

check_layout() { # a share that a newer version has used is rejected, an older one is migrated forward
  if cmp -s /usr/share/rocmlab/layout/.rocmlab/layout.json "$ROCMLAB_SHARE/.rocmlab/layout.json"; then return; fi
  /opt/rocmlab/bin/python -I -m rocmlab.stack.layout "$ROCMLAB_SHARE" || exit 2
}

use_packages() { # of `pip install --user`: for the very interpreter they were installed for, or they would hide its own
  local base found=()
  base=$home/.local/python/$(cat /etc/rocmlab-python)
  export PYTHONUSERBASE=${PYTHONUSERBASE:-$base}
  if [[ ! $is_first || -d $base ]]; then return; fi
  found=("$home"/.local/python/*/ "$home"/.local/lib/python*/)
  if ((${#found[@]})); then
    say "packages that were installed for another image are not used, and kept: ${found[*]} (docs/kernels.md)"
  fi
}

use_caches() { # compiled kernels belong to one ROCm version and one target, weights do not; both outlive the container
  local rocm=/opt/rocm/.info/version platform=$ROCMLAB_BACKEND wheel targets name
  wheel=$(compgen -G '/opt/torch/lib/python3*/site-packages/rocm_sdk_core-*.dist-info' || true) # of a slim image
  if [[ -r $rocm ]]; then
    platform=rocm$(cut -d- -f1 "$rocm")
  elif [[ $wheel ]]; then
    wheel=${wheel##*rocm_sdk_core-}
    platform=rocm${wheel%.dist-info}
  fi
  targets=$(gfx_targets)
  local cache=$ROCMLAB_SHARE/cache/$platform-${targets:-any}
  (umask 002 && mkdir -p "$cache") 2>/dev/null || check_folder "$ROCMLAB_SHARE/cache" SHARE
  for name in ${is_first:+huggingface keras}; do # earlier versions kept these by ROCm version, too
    if [[ -d $cache/$name ]]; then mv -nT "$cache/$name" "$ROCMLAB_SHARE/cache/$name" 2>/dev/null || true; fi
  done
  export HF_HOME=${HF_HOME:-$ROCMLAB_SHARE/cache/huggingface} KERAS_HOME=${KERAS_HOME:-$ROCMLAB_SHARE/cache/keras}
  export MIOPEN_CUSTOM_CACHE_DIR=${MIOPEN_CUSTOM_CACHE_DIR:-$cache/miopen}
  export MIOPEN_USER_DB_PATH=${MIOPEN_USER_DB_PATH:-$cache/miopen}
  export MPLCONFIGDIR=${MPLCONFIGDIR:-$cache/matplotlib} XDG_CACHE_HOME=${XDG_CACHE_HOME:-$cache}
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
  export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
}

use_fonts() { # matplotlib makes a list of fonts once, and never looks for new ones: it gets the image's, or makes another
  if [[ ! $is_first ]]; then return; fi
  local lists=(/usr/share/rocmlab/matplotlib/fontlist-*.json) own=("$HOME/.fonts" "${XDG_DATA_HOME:-$HOME/.local/share}/fonts")
  local record=$MPLCONFIGDIR/fonts-of-image known
  if ((${#lists[@]} == 0)); then return; fi # an image without matplotlib
  known=$(cat "${lists[@]}" | sha256sum)
  if [[ $(cat "$record" 2>/dev/null) == "$known" && ! $(find "${own[@]}" -newercm "$record" -print -quit 2>/dev/null) ]]; then
    return
  fi
  { # a full disk must not stop the lab
    mkdir -p "$MPLCONFIGDIR" && rm -f "$MPLCONFIGDIR"/fontlist-*.json && echo "$known" >"$record" &&
      { [[ $(find "${own[@]}" ! -type d -print -quit) ]] || cp "${lists[@]}" "$MPLCONFIGDIR"; }
  } 2>/dev/null || true
}

use_windows_libraries() { # WSL2: Windows lends the libraries that talk to /dev/dxg
  local folder=/usr/lib/wsl/lib
  if [[ -e /dev/dxg && -d $folder ]]; then export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
}

use_kernels() { # those written for this container's GPUs: they end with it, and a persistent home never has them
  export ROCMLAB_KERNELS=$JUPYTER_RUNTIME_DIR/data/kernels
  export JUPYTER_PATH=$JUPYTER_RUNTIME_DIR/data${JUPYTER_PATH:+:$JUPYTER_PATH}
}

offer_kernels() { # for the GPUs that this container has; without them the launcher offers the plain kernels
  /opt/rocmlab/bin/rocmlab kernels install >/dev/null ||
    say "the launcher offers only the plain kernels, TensorFlow and PyTorch"
}

use_secrets() { # what a mirror or a TLS-inspecting proxy needs, lent by Compose; empty where the user gave none
  local bundle=/run/secrets/ca_bundle configuration=/run/secrets/pip_config file
  for file in "$bundle" "$configuration"; do
    if [[ $is_first && -s $file && ! -r $file ]]; then
      say "$file is not used: uid $(id -u) may not read it (on the host: chmod o+r, or set NB_UID to its owner)"
    fi
  done
  if [[ -s $bundle && -r $bundle ]]; then
    export SSL_CERT_FILE=$bundle REQUESTS_CA_BUNDLE=$bundle CURL_CA_BUNDLE=$bundle PIP_CERT=$bundle
  fi
  if [[ -s $configuration && -r $configuration ]]; then export PIP_CONFIG_FILE=$configuration; fi
}

own_address() { # of the way out, as the Ray node finds it (192.0.2.1 is no one's, and nothing is sent)
  /opt/rocmlab/bin/python -S -E - <<<'import socket
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("192.0.2.1", 9))
print(probe.getsockname()[0])' 2>/dev/null || echo 127.0.0.1
}

use_cluster() { # a node of a Ray cluster: `ray.init()` in a notebook and `rocmlab run --engine ray` find it
  if [[ ${CLUSTER:-off} == off ]]; then return; fi
  if [[ $CLUSTER == head ]]; then
    export CLUSTER_ADDRESS=${CLUSTER_ADDRESS:-$(own_address)}
    export RAY_ADDRESS=$CLUSTER_ADDRESS:${CLUSTER_PORT:-6379}
  else
    export RAY_ADDRESS=$CLUSTER
  fi
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$JUPYTER_RUNTIME_DIR/cluster-token RAY_USAGE_STATS_ENABLED=0
  export RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor # nodes may differ in the last number of Python's version
}

# ---------------------------------------------------------------------------------------------------------------------

# The first process of a container is tini's child; one of `docker exec` has no parent in here.
parent=$(cat "/proc/$PPID/comm" 2>/dev/null || true)
is_first=${ROCMLAB_FIRST-$([[ $$ != 1 && $parent != tini ]] || echo yes)}
if ((EUID == 0)); then become_lab_user "$@"; fi
unset ROCMLAB_FIRST

export HOME=$home USER=jovyan LOGNAME=jovyan SHELL=/bin/bash
if [[ ${NB_UMASK:-} ]]; then umask "$NB_UMASK"; fi
if [[ $is_first ]]; then
  prove_access
  open_share
  check_leases
  check_layout
fi
use_packages
use_kernels
use_caches
use_fonts
use_windows_libraries
use_secrets
use_cluster
if [[ $is_first ]]; then
  if [[ $is_first != prepared ]]; then make_runtime; fi # else root has done it
  keep_secrets
  if [[ ${CLUSTER:-off} != off && ! -s $RAY_AUTH_TOKEN_PATH ]]; then
    fail "the cluster's token cannot be read" "/run/secrets/cluster_token is missing" "make cluster-up, or make cluster-join"
  fi
  offer_kernels
  run_hooks before-notebook.d
fi
keep_secrets
for name in ${is_first:+JUPYTER METRICS}; do # for the server, which reads them once
  file=$JUPYTER_RUNTIME_DIR/${name,,}-token
  if [[ -r $file ]]; then export "${name}_TOKEN_FILE=$file"; fi
done
exec "$@"
