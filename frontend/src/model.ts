/**
 * What the server tells under `rocmlab/api/`: the fields that are shown, named as there.
 * Base units (bytes, W, °C, Hz, percent 0-100); null is unknown, never 0.
 */

type Unknown<T> = T | null;

export interface Device {
  id: string;
  backend: string;
  index: Unknown<number>;
  name: string;
  is_usable: boolean;
  why_not: Unknown<string>;
  gfx: Unknown<string>;
  support: Unknown<string>; // ROCm on its target: works, override, overridden, unsupported, wrong or unknown
  pci_address: Unknown<string>;
  render_node: Unknown<string>;
  smi_index: Unknown<number>;
  is_apu: Unknown<boolean>;
  vram_bytes: Unknown<number>;
  gtt_bytes: Unknown<number>;
  pool: Unknown<string>; // where frameworks allocate on an APU: gtt or vram
  pool_bytes: Unknown<number>; // how much of it they can allocate
  driver: Unknown<string>;
  partition: Unknown<number>;
  compute_partition: Unknown<string>;
  link_width_max: Unknown<number>;
  link_speed_max_gts: Unknown<number>;
}

export interface Sample {
  time_seconds: number;
  is_asleep: boolean;
  busy_percent: Unknown<number>;
  memory_busy_percent: Unknown<number>;
  vram_used_bytes: Unknown<number>;
  vram_total_bytes: Unknown<number>;
  gtt_used_bytes: Unknown<number>;
  gtt_total_bytes: Unknown<number>;
  power_watts: Unknown<number>;
  power_cap_watts: Unknown<number>;
  edge_celsius: Unknown<number>;
  edge_critical_celsius: Unknown<number>;
  junction_celsius: Unknown<number>;
  junction_critical_celsius: Unknown<number>;
  memory_celsius: Unknown<number>;
  memory_critical_celsius: Unknown<number>;
  core_clock_hertz: Unknown<number>;
  core_clock_max_hertz: Unknown<number>;
  memory_clock_hertz: Unknown<number>;
  memory_clock_max_hertz: Unknown<number>;
  fan_rpm: Unknown<number>;
  fan_percent: Unknown<number>;
  link_width: Unknown<number>;
  link_speed_gts: Unknown<number>;
  pcie_replays: Unknown<number>;
  ecc_corrected: Unknown<Record<string, number>>;
  ecc_uncorrected: Unknown<Record<string, number>>;
  throttle_reasons: Unknown<string[]>;
  performance_level: Unknown<string>;
}

export interface Owner {
  kind: string;
  notebook: Unknown<string>;
  kernel_id: Unknown<string>;
  kernel_name: Unknown<string>;
  kernel_state: Unknown<string>;
  idle_seconds: Unknown<number>;
  run: Unknown<string>;
  job: Unknown<string>;
  container: Unknown<string>;
  is_estimated: boolean;
}

export interface GpuProcess {
  device: string;
  pid: number;
  local_pid: Unknown<number>;
  name: Unknown<string>;
  command: Unknown<string>;
  user: Unknown<string>;
  started_seconds: Unknown<number>;
  vram_bytes: Unknown<number>;
  compute_units_percent: Unknown<number>;
  owner: Unknown<Owner>;
  is_estimated: boolean;
}

export interface Snapshot {
  time_seconds: number;
  samples: Record<string, Sample>;
  energy_joules: Record<string, Unknown<number>>;
  processes: Unknown<GpuProcess[]>;
}

/** A kernel's place among all who wait for GPUs of this host; null as long as it is not known. */
export interface Queue {
  gpus: number; // that it waits for
  place: Unknown<number>; // 1 is next
  length: Unknown<number>;
}

export interface Kernel {
  kernel_id: string;
  pid: Unknown<number>;
  notebook: Unknown<string>;
  kernel_name: Unknown<string>;
  state: Unknown<string>;
  starting_since_seconds: Unknown<number>; // Unix time; null: it does not start
  idle_seconds: Unknown<number>;
  idle_since_seconds: Unknown<number>; // Unix time
  devices: string[];
  is_gpu_shared?: boolean; // it uses a GPU that nothing can reserve: Metal, WSL2
  since: Unknown<string | number>;
  queue: Unknown<Queue>; // null: it does not wait for GPUs
}

export interface Lease {
  device: string;
  notebook: Unknown<string>;
  owner: Unknown<string>;
  host: Unknown<string>;
  pid: Unknown<number>; // as its holder's container counts
  local_pid: Unknown<number>; // the same as this server counts; null: it is another container's
  started: Unknown<string>;
  kernel_id: Unknown<string>; // if it is one of this server
}

export interface Problem {
  what: string;
  why: string;
  fix: string;
  status?: string; // blocks, or warns where everything works, only worse
}

/** A kernel that has long done nothing and keeps GPU memory from others. */
export interface IdleHolder {
  kernel_id: string;
  kernel_name: Unknown<string>;
  notebook: Unknown<string>;
  idle_since_seconds: Unknown<number>;
  devices: string[];
  vram_bytes: Unknown<number>;
  is_estimated: boolean;
}

/** What a notebook has taken of GPUs with its leases since the lab was started. */
export interface Cost {
  notebook: string;
  kernel_ids: string[]; // of kernels that have a lease now
  since_seconds: number; // Unix time of its first lease
  gpu_seconds: number;
  energy_joules: Unknown<number>;
  is_whole: boolean; // whether that is all the energy
  is_shared: boolean; // others were seen on its GPUs
  amount: Unknown<number>;
  currency: Unknown<string>;
  is_amount_whole: Unknown<boolean>;
}

export interface State {
  costs: Cost[];
  leases: Unknown<Lease[]>;
  kernels: Kernel[];
  problems: Problem[];
  idle_holders: IdleHolder[];
}

export interface ClusterDevice {
  id: string;
  index: Unknown<number>;
  name: string;
  gfx: Unknown<string>;
  is_usable: boolean;
  why_not: Unknown<string>;
  is_asleep: boolean;
  busy_percent: Unknown<number>;
  memory_used_bytes: Unknown<number>; // VRAM, or GTT of an APU
  memory_total_bytes: Unknown<number>;
  lease: Unknown<{ notebook: Unknown<string>; owner: Unknown<string>; host: Unknown<string> }>; // null: it is free
  is_lease_unknown?: boolean; // a node of an earlier version does not tell
}

export interface ClusterNode {
  id: string;
  hostname: string;
  address: string;
  is_alive: boolean;
  is_head: boolean;
  is_here: boolean; // it is this lab's
  simulated: boolean;
  cpus: Unknown<number>;
  gpus: number; // that Ray may give away
  rocm: Unknown<string>;
  devices: Unknown<ClusterDevice[]>;
  gpus_given: Unknown<number>; // to tasks, by Ray
  jobs_without_gpu: Unknown<number>;
  problem: Unknown<Problem>;
}

export interface Cluster {
  state: 'starting' | 'alive' | 'lost';
  age_seconds: Unknown<number>; // of what is told of the nodes
  nodes: ClusterNode[];
  problem: Unknown<Problem>;
}

export interface Devices {
  simulated: boolean;
  is_in_cluster?: boolean;
  devices: Device[];
  problems: Problem[];
}

export interface History {
  times: Record<string, number[]>;
  series: Record<string, Record<string, Unknown<number>[]>>;
}

/** Return what to call a device in one or two words: `GPU 0`, by its HIP (or CUDA) index, or `CPU`. */
export function shortName(device: Device | undefined, id: string): string {
  if (device === undefined) {
    return id;
  }
  if (device.backend === 'cpu') {
    return 'CPU';
  }
  return device.index === null ? `GPU ${device.pci_address ?? device.id}` : `GPU ${device.index}`;
}

export function isGpu(device: Device): boolean {
  return device.backend !== 'cpu';
}

/** Return whether a device's memory is that of the host: on most APUs frameworks allocate GTT, the CPU has no other. */
export function usesHostMemory(device: Device): boolean {
  return device.backend === 'cpu' || device.pool === 'gtt';
}

/** Return what is shown as a device's memory: where frameworks allocate on an APU, the CPU's own, else VRAM. */
export function memoryOf(
  device: Device,
  sample: Sample | undefined
): { used: number | null; total: number | null } {
  if (usesHostMemory(device)) {
    const total = sample?.gtt_total_bytes ?? device.gtt_bytes;
    return { used: sample?.gtt_used_bytes ?? null, total: limited(device, total) };
  }
  const total = sample?.vram_total_bytes ?? device.vram_bytes;
  return { used: sample?.vram_used_bytes ?? null, total: limited(device, total) };
}

/** Return how much of an APU's memory frameworks can allocate, which may be less than there is. */
function limited(device: Device, total: number | null): number | null {
  const { pool_bytes: limit } = device;
  return total === null || limit === null ? total : Math.min(total, limit);
}

export function memoryName(device: Device): string {
  if (device.backend === 'cpu') {
    return 'Memory';
  }
  return usesHostMemory(device) ? 'GTT' : 'VRAM';
}
