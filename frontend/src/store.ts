/** What is known of the GPUs now, for everything that shows it: one connection, open while somebody looks. */

import type { Host } from './host';
import { reason } from './host';
import type {
  Cost,
  Device,
  Devices,
  GpuProcess,
  History,
  IdleHolder,
  Kernel,
  Lease,
  Problem,
  Sample,
  Snapshot,
  State
} from './model';
import { FIELDS, Series, SPAN_SECONDS } from './series';
import { Stream, type Receiver, type Status } from './stream';

/** What has changed; everything after the connection was opened. */
export type Change = 'all' | 'snapshot' | 'state' | 'status';
export type Listener = (change: Change) => void;

export const STATUS: Record<Status, string> = {
  closed: 'paused',
  connecting: 'connecting…',
  live: 'live',
  lost: 'connection lost, retrying…',
  refused: 'signed out: reload the page and sign in again'
};

const AGAIN_SECONDS = 5; // between two looks at the list of devices while a device is missing

export class Store implements Receiver {
  devices: Device[] = [];
  simulated = false;
  isLoaded = false; // the devices are known
  isInCluster = false; // this lab is a node of one
  problems: Problem[] = [];
  time = Date.now() / 1000; // of the newest snapshot
  samples: Record<string, Sample> = {};
  energy: Record<string, number | null> = {};
  processes: GpuProcess[] | null = null;
  kernels: Kernel[] = [];
  leases: Lease[] | null = null;
  idle: IdleHolder[] = [];
  costs: Cost[] = [];
  status: Status = 'closed';
  readonly series = new Map<string, Series>();

  private readonly stream: Stream;
  private readonly listeners = new Set<Listener>();
  private looked = -Infinity;
  private early: State | null = null; // came before the devices

  constructor(readonly host: Host) {
    this.stream = new Stream(host, this);
    document.addEventListener('visibilitychange', () => this.follow());
  }

  /** Be told of changes until the returned function is called. */
  watch(listener: Listener): () => void {
    this.listeners.add(listener);
    this.follow();
    return () => {
      this.listeners.delete(listener);
      this.follow();
    };
  }

  device(id: string): Device | undefined {
    return this.devices.find(device => device.id === id);
  }

  kernel(id: string | null): Kernel | undefined {
    return this.kernels.find(kernel => kernel.kernel_id === id);
  }

  /** Return how long ago something was, by the server's clock; null if that is unknown. */
  secondsSince(when: number | null): number | null {
    return when === null ? null : Math.max(0, this.time - when);
  }

  /** Ask for the kernels without opening the stream. */
  async loadKernels(): Promise<void> {
    const response = await this.host.request('api/kernels');
    if (response.ok) {
      this.kernels = (await response.json()) as Kernel[];
    }
  }

  /** Interrupt, restart or shut down a kernel. Throws, with a sentence, if that failed. */
  async act(kernel: string, action: string): Promise<void> {
    const response = await this.host.request(`api/kernels/${encodeURIComponent(kernel)}/${action}`, 'POST');
    if (!response.ok) {
      throw new Error(await reason(response));
    }
  }

  // -- of the stream

  async onOpen(): Promise<void> {
    await this.loadDevices();
    const response = await this.host.request(
      `api/history?seconds=${SPAN_SECONDS}&metrics=${FIELDS.join(',')}`
    );
    if (!response.ok) {
      throw new Error(await reason(response));
    }
    const history = (await response.json()) as History;
    for (const series of this.series.values()) {
      series.replace(history);
    }
    this.tell('all');
  }

  onSnapshot(snapshot: Snapshot): void {
    this.time = snapshot.time_seconds;
    this.samples = snapshot.samples;
    this.energy = snapshot.energy_joules;
    this.processes = snapshot.processes;
    for (const [id, sample] of Object.entries(snapshot.samples)) {
      this.series.get(id)?.add(snapshot.time_seconds, sample);
    }
    if (this.isLoaded) {
      this.tell('snapshot');
      void this.compare();
    }
  }

  onState(state: State): void {
    if (!this.isLoaded) {
      this.early = state;
      return;
    }
    this.leases = state.leases;
    this.idle = state.idle_holders;
    this.costs = state.costs;
    this.problems = state.problems;
    this.kernels = state.kernels;
    this.tell('state');
  }

  onStatus(status: Status): void {
    if (status !== this.status && !(status === 'lost' && this.status === 'refused')) {
      this.status = status;
      this.tell('status');
    }
  }

  // --

  private follow(): void {
    if (this.listeners.size > 0 && document.visibilityState !== 'hidden') {
      this.stream.open();
    } else if (this.status !== 'closed') {
      this.stream.close();
    }
  }

  private tell(change: Change): void {
    for (const listener of [...this.listeners]) {
      listener(change);
    }
  }

  private async loadDevices(): Promise<void> {
    const response = await this.host.request('api/devices');
    if (!response.ok) {
      throw new Error(await reason(response));
    }
    const found = (await response.json()) as Devices;
    this.devices = found.devices;
    this.simulated = found.simulated;
    this.isInCluster = found.is_in_cluster === true;
    this.problems = found.problems;
    const ids = new Set(found.devices.map(device => device.id));
    for (const id of [...this.series.keys()].filter(id => !ids.has(id))) {
      this.series.delete(id);
    }
    for (const device of found.devices) {
      if (!this.series.has(device.id)) {
        this.series.set(device.id, new Series(device));
      }
    }
    this.isLoaded = true;
    if (this.early !== null) {
      const early = this.early;
      this.early = null;
      this.onState(early);
    }
  }

  /** Ask for the devices again when one has appeared or gone. */
  private async compare(): Promise<void> {
    const now = performance.now() / 1000;
    const known = this.devices.map(device => device.id);
    const sampled = Object.keys(this.samples);
    const isSame = known.length === sampled.length && known.every(id => id in this.samples);
    if (!isSame && now - this.looked > AGAIN_SECONDS) {
      this.looked = now;
      try {
        await this.loadDevices();
        this.tell('all');
      } catch {
        // the stream notices that the server is gone
      }
    }
  }
}
