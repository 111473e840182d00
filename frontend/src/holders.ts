/** Who uses the GPUs: the processes of one kernel, job or container are one row, and a lease without a process is one too. */

import { shortName, type Device, type GpuProcess, type Kernel, type Lease } from './model';
import { bytes, plain } from './units';

export interface Holder {
  key: string;
  name: string; // of the notebook, the job, the container or the program
  detail: string; // what else is known of it
  notebook: string | null; // a path that this server can open
  kernel: Kernel | null; // of this server
  devices: string[];
  processes: GpuProcess[];
  vramBytes: number | null;
  isPartlyUnknown: boolean; // of some processes the memory is not known
  isEstimated: boolean;
}

interface Known {
  processes: GpuProcess[] | null;
  kernels: Kernel[];
  leases: Lease[] | null;
}

function keyOf(process: GpuProcess): string {
  const owner = process.owner;
  if (owner?.kernel_id) {
    return `kernel ${owner.kernel_id}`;
  }
  if (owner?.kind === 'job') {
    return `job ${owner.run ?? ''} ${owner.job ?? owner.notebook ?? process.pid}`;
  }
  if (owner?.notebook) {
    return `notebook ${owner.notebook}`;
  }
  if (owner?.container) {
    return `container ${owner.container}`;
  }
  return `process ${process.pid}`;
}

function unique<T>(items: T[]): T[] {
  return [...new Set(items)];
}

/** Return a kernel's notebook as a path that JupyterLab can open. */
function openable(kernel: Kernel | null): string | null {
  return kernel?.notebook?.endsWith('.ipynb') === true ? kernel.notebook : null;
}

/** Return what is said below the name. */
function detailOf(first: GpuProcess, kernel: Kernel | null, hasNotebook: boolean): string {
  const { owner } = first;
  const details = [
    owner?.kind === 'job' && owner.run !== null ? `run ${owner.run}` : null,
    kernel?.kernel_name ?? owner?.kernel_name ?? null,
    owner?.container ? `container ${owner.container}` : null,
    hasNotebook ? null : first.command,
    first.name === null && !hasNotebook ? `process ${first.pid} of the host` : null
  ];
  return plain(unique(details.filter(each => each !== null)).join(' · '));
}

function ofProcesses(key: string, processes: [GpuProcess, ...GpuProcess[]], kernels: Kernel[]): Holder {
  const [first] = processes;
  const { owner } = first;
  const kernel = kernels.find(each => each.kernel_id === owner?.kernel_id) ?? null;
  const known = processes.flatMap(each => (each.vram_bytes === null ? [] : [each.vram_bytes]));
  const notebook = kernel?.notebook ?? owner?.notebook ?? null;
  const program = first.name ?? first.command ?? 'another user or container';
  const leased = kernel?.since ? kernel.devices : [];
  return {
    key,
    name: plain(notebook ?? owner?.job ?? program),
    detail: detailOf(first, kernel, notebook !== null),
    notebook: openable(kernel),
    kernel,
    devices: unique([...leased, ...processes.map(each => each.device)]),
    processes,
    vramBytes: known.length > 0 ? known.reduce((one, other) => one + other, 0) : null,
    isPartlyUnknown: known.length > 0 && known.length < processes.length,
    isEstimated: processes.some(each => each.is_estimated || each.owner?.is_estimated === true)
  };
}

function withoutProcess(
  key: string,
  name: string,
  detail: string,
  devices: string[],
  kernel: Kernel | null
): Holder {
  return {
    key,
    name: plain(name),
    detail: plain(detail),
    notebook: openable(kernel),
    kernel,
    devices,
    processes: [],
    vramBytes: null,
    isPartlyUnknown: false,
    isEstimated: false
  };
}

/** Return the leases that no row shows: of other servers, of runs, of other containers. */
function foreignLeases(rows: Holder[], leases: Lease[]): Holder[] {
  const pids = new Set(rows.flatMap(row => row.processes.map(each => each.local_pid)));
  const isShown = (lease: Lease): boolean =>
    (lease.local_pid !== null && pids.has(lease.local_pid)) ||
    rows.some(row => row.kernel !== null && row.kernel.kernel_id === lease.kernel_id) ||
    rows.some(row => row.name === lease.notebook && row.devices.includes(lease.device));
  const foreign = new Map<string, [Lease, ...Lease[]]>();
  for (const lease of leases.filter(each => !isShown(each))) {
    const key = `lease ${lease.host ?? ''} ${lease.pid ?? ''} ${lease.notebook ?? ''}`;
    const group = foreign.get(key);
    if (group === undefined) {
      foreign.set(key, [lease]);
    } else {
      group.push(lease);
    }
  }
  return [...foreign].map(([key, group]) => {
    const [lease] = group;
    const who = [lease.owner, lease.host].filter(Boolean).join(' on ');
    const process = lease.pid === null ? '' : `, process ${lease.pid}`;
    const name = lease.notebook ?? 'an unknown notebook';
    return withoutProcess(
      key,
      name,
      `lease of ${who || 'an unknown user'}${process}`,
      group.map(each => each.device),
      null
    );
  });
}

/** Return the rows of the table, by name. */
export function holders({ processes, kernels, leases }: Known): Holder[] {
  const groups = new Map<string, [GpuProcess, ...GpuProcess[]]>();
  for (const process of processes ?? []) {
    const key = keyOf(process);
    const group = groups.get(key);
    if (group === undefined) {
      groups.set(key, [process]);
    } else {
      group.push(process);
    }
  }
  const rows = [...groups].map(([key, group]) => ofProcesses(key, group, kernels));
  for (const kernel of kernels) {
    const key = `kernel ${kernel.kernel_id}`;
    if ((kernel.since || kernel.queue) && !groups.has(key)) {
      const name = kernel.notebook ?? kernel.kernel_name ?? 'a kernel';
      rows.push(
        withoutProcess(key, name, kernel.kernel_name ?? '', kernel.queue ? [] : kernel.devices, kernel)
      );
    }
  }
  rows.push(...foreignLeases(rows, leases ?? []));
  return rows.sort((one, other) => one.name.localeCompare(other.name) || one.key.localeCompare(other.key));
}

/** Return a row's memory: `at least` where some of it is not known. */
export function memoryText(holder: Holder): string {
  return (holder.isPartlyUnknown ? '≥ ' : '') + bytes(holder.vramBytes);
}

export function deviceNames(ids: string[], devices: Device[]): string {
  const names = ids.map(id =>
    shortName(
      devices.find(device => device.id === id),
      id
    )
  );
  const numbers = names.map(name => name.replace(/^GPU /, ''));
  return names.length > 1 && names.every(name => /^GPU \d+$/.test(name))
    ? `GPU ${numbers.join(', ')}`
    : names.join(', ');
}
