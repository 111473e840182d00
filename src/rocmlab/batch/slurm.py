"""An exported run as scripts for Slurm: one array for each number of GPUs, a job that collects, and one to submit all.

Source: sbatch(1), scontrol(1). What Slurm refuses, an unknown partition for example, it says itself.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.batch import commands
from rocmlab.batch.layout import Group, Layout

FOLDER = "slurm"
SUBMIT, COLLECT = "submit.sh", "collect.sh"
LOG = "%A_%a.log"


def scripts(layout: Layout, folder: Path, args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the scripts by name; the run's folder is the same on all machines.

    Raises:
        RocmlabError: an argument or path has a character no directive can contain, or an image does not see a notebook.
    """
    if args.image:
        layout.check_seen(f"{args.image} sees")
    made = {f"array-{group.gpus}gpu.sh": _array(group, layout, folder, args, environment) for group in layout.groups}
    made[COLLECT] = _collect(layout, folder, args, environment)
    made[SUBMIT] = _submit(layout, folder, args.array_size, args.parallel)
    return made


def _array(group: Group, layout: Layout, folder: Path, args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    wanted = {
        "job-name": layout.run,
        "array": _range(min(group.count, args.array_size), args.parallel),
        "output": str(folder / FOLDER / LOG),
        "open-mode": "append",  # so that an attempt does not overwrite the log of the one before
        "nodes": "1",
        "ntasks": "1",
        **_gpus(group.gpus, args),
        **({"cpus-per-task": str(args.cpus)} if args.cpus else {}),
        **({"mem": f"{-(-args.job_memory // 2**20)}M"} if args.job_memory else {}),
        **({"time": _time(seconds)} if (seconds := args.time or group.seconds) else {}),
    }
    head = [*_directives(wanted, args), "#SBATCH --requeue"]
    run = commands.line(
        ["export", "job", '"$folder"', '"$number"'], args.image, args.container, Path(layout.share), layout.backend
    )
    return f"""#!/bin/bash
{chr(10).join(head)}
# Jobs of {layout.run}: {group.count}, GPUs of each: {group.gpus}. Element N runs job {group.first} + N;
# an array task whose job has succeeded does nothing. Exit codes: 0 ok, 1 the notebook failed, 2 it could not be run,
# 124 timeout, 137 killed, 138 its kernel died.
set -u
folder={shlex.quote(str(folder))}
number=$(({group.first} + ${{1:-0}} + SLURM_ARRAY_TASK_ID))
{_exports(environment, layout)}
# Slurm gives a GPU to one job, so the job's leases may be its own; many nodes have no folder for those of all users.
own=""
trap 'if [ "$own" ]; then rm -rf "$own"; fi' EXIT
if [ -z "${{LEASES_DIR:-}}" ]; then own=$(mktemp -d /tmp/rocmlab-leases-XXXXXXXX) && export LEASES_DIR="$own"; fi
# Slurm tells every process of the job that its time is over. rocmlab saves and ends; this shell says how.
told=no
trap 'told=yes' TERM
{run}
code=$?
# What may be temporary is retried, perhaps on another node; what Slurm itself ended is not.
if [ "$told" = no ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {layout.retries} ]; then
  case $code in
    137 | 138) scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" ;; # the job's own id may be the array's
  esac
fi
exit "$code"
"""


def _collect(layout: Layout, folder: Path, args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    wanted = {"job-name": f"{layout.run}-collect", "output": str(folder / FOLDER / "collect.log"), "ntasks": "1"}
    run = commands.line(["export", "collect", '"$folder"'], args.image, args.container, Path(layout.share), "cpu")
    return f"""#!/bin/bash
{chr(10).join(_directives(wanted, args))}
# Makes results.json, report.html and junit.xml of what the elements have left. Exit code: 0 if all are ok, else 1.
set -u
folder={shlex.quote(str(folder))}
{_exports(environment, layout)}
{run}
"""


def _submit(layout: Layout, folder: Path, array_size: int, parallel: int | None) -> str:
    lines = []
    for group in layout.groups:
        script = shlex.quote(str(folder / FOLDER / f"array-{group.gpus}gpu.sh"))
        for begin in range(0, group.count, array_size):
            count = min(array_size, group.count - begin)
            is_whole = count == group.count
            more = "" if is_whole or count == array_size else f"--array={_range(count, parallel)} "
            lines.append(f"submit {more}{script}{'' if is_whole else f' {begin}'}")
    collect = shlex.quote(str(folder / FOLDER / COLLECT))
    # Slurm limits how many elements of one array run, so with a limit of the run one array runs after the other.
    after = ' ${ids:+"--dependency=afterany:${ids##*:}"}' if parallel else ""
    return f"""#!/bin/bash
# Hands {layout.run} to Slurm.
# Arguments of this script are passed to every sbatch; --test-only asks Slurm whether it would accept the jobs.
set -eu
options=("$@")
ids=""
undo() {{ # a partly submitted run is cancelled: submitting it again would run that part twice
  local code=$?
  if [ "$code" = 0 ] || [ -z "$ids" ]; then return; fi
  IFS=: read -ra begun <<<"${{ids#:}}"
  echo "not all jobs were accepted, so the accepted ones are cancelled: ${{begun[*]}}" >&2
  scancel "${{begun[@]}}"
}}
trap undo EXIT
submit() {{
  local id
  id=$(sbatch --parsable "${{options[@]}}"{after} "$@")
  ids=$ids:${{id%%;*}}
}}
case " $* " in
  *" --test-only "*) submit() {{ sbatch "${{options[@]}}" "$@"; }} ;;
esac
{chr(10).join(lines)}
if [ -z "$ids" ]; then exit 0; fi
id=$(sbatch --parsable "${{options[@]}}" --dependency="afterany$ids" {collect})
echo "submitted ${{ids#:}}, and ${{id%%;*}} that collects: squeue --me"
"""


def _gpus(count: int, args: argparse.Namespace) -> dict[str, str]:
    if not count:
        return {}
    kind = f"{args.gpu_type}:" if args.gpu_type else ""
    return {args.gpu_option: f"gpu:{kind}{count}" if args.gpu_option == "gres" else f"{kind}{count}"}


def _range(count: int, parallel: int | None) -> str:
    return f"0-{count - 1}" + (f"%{parallel}" if parallel else "")


def _time(seconds: float) -> str:
    """Return a time as Slurm reads it, in whole minutes: `1-02:30:00`."""
    minutes = -(-int(seconds) // 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:00"


def _directives(wanted: Mapping[str, str], args: argparse.Namespace) -> list[str]:
    site = {name: getattr(args, name) for name in ("partition", "account") if getattr(args, name)}
    options = [f"--{name}={value}" for name, value in {**wanted, **site}.items()] + args.sbatch
    for option in options:
        if not option.isprintable() or any(sign in option for sign in "\"'\\"):
            raise RocmlabError(
                f"{option!r} cannot be used in a Slurm script",
                "Slurm reads quotes and backslashes there in its own way",
                "rename the share, the run or the option without these characters",
            )
        if not option.startswith("-"):
            raise RocmlabError(
                f"--sbatch={option} is not an option", "an option begins with --", f"--sbatch=--{option}"
            )
    return [f'#SBATCH "{option}"' if " " in option else f"#SBATCH {option}" for option in options]


def _exports(environment: Mapping[str, str], layout: Layout) -> str:
    values = {**commands.kept(environment), "ROCMLAB_SHARE": layout.share}
    values["ROCMLAB_BACKEND"] = layout.backend
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
