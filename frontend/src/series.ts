/** The last 15 minutes of one device, as the charts want them. */

import type { Device, History, Sample } from './model';
import { usesHostMemory } from './model';

export const SPAN_SECONDS = 900;
const GAP_SECONDS = 15; // nobody looked meanwhile: the line is broken
const BACK_SECONDS = 5; // an older point is not one that the history has already: the server's clock was set back
const SPARE = 120; // points that may be too old before they are cut off

export type Metric = 'busy' | 'memory' | 'power' | 'temperature';
export const METRICS: readonly Metric[] = ['busy', 'memory', 'power', 'temperature'];

/** What the history is asked for. */
export const FIELDS = [
  'busy_percent',
  'vram_used_bytes',
  'gtt_used_bytes',
  'power_watts',
  'junction_celsius',
  'edge_celsius'
] as const;

/** Return the temperature that matters: the hotspot's where there is one. */
export function temperatureOf(sample: Sample | undefined): {
  now: number | null;
  limit: number | null;
  name: string;
} {
  if (sample !== undefined && sample.junction_celsius === null && sample.edge_celsius !== null) {
    return { now: sample.edge_celsius, limit: sample.edge_critical_celsius, name: 'edge' };
  }
  return {
    now: sample?.junction_celsius ?? null,
    limit: sample?.junction_critical_celsius ?? null,
    name: 'hotspot'
  };
}

export class Series {
  readonly times: number[] = [];
  readonly values: Record<Metric, (number | null)[]> = { busy: [], memory: [], power: [], temperature: [] };
  version = 0; // changes with the data

  constructor(private readonly device: Device) {}

  get last(): number {
    return this.times[this.times.length - 1] ?? -Infinity;
  }

  /** Start anew with what the server has kept. */
  replace(history: History): void {
    this.cut(this.times.length);
    const times = history.times[this.device.id] ?? [];
    const found: Partial<Record<(typeof FIELDS)[number], (number | null)[]>> =
      history.series[this.device.id] ?? {};
    const junction = found.junction_celsius;
    const temperature = junction?.some(value => value !== null) ? junction : found.edge_celsius;
    const memory = found[usesHostMemory(this.device) ? 'gtt_used_bytes' : 'vram_used_bytes'];
    times.forEach((time, index) => {
      this.push(time, {
        busy: found.busy_percent?.[index] ?? null,
        memory: memory?.[index] ?? null,
        power: found.power_watts?.[index] ?? null,
        temperature: temperature?.[index] ?? null
      });
    });
    this.version += 1;
  }

  add(time: number, sample: Sample): void {
    const memory = usesHostMemory(this.device) ? sample.gtt_used_bytes : sample.vram_used_bytes;
    this.push(time, {
      busy: sample.busy_percent,
      memory,
      power: sample.power_watts,
      temperature: temperatureOf(sample).now
    });
    const old = this.times.findIndex(each => each >= time - SPAN_SECONDS);
    if (old > SPARE) {
      this.cut(old);
    }
    this.version += 1;
  }

  private push(time: number, row: Record<Metric, number | null>): void {
    if (time < this.last - BACK_SECONDS) {
      this.cut(this.times.length);
    }
    if (time <= this.last) {
      return; // the history has it already
    }
    if (time - this.last > GAP_SECONDS && this.times.length > 0) {
      this.append(this.last + 1, { busy: null, memory: null, power: null, temperature: null });
    }
    this.append(time, row);
  }

  private append(time: number, row: Record<Metric, number | null>): void {
    this.times.push(time);
    for (const metric of METRICS) {
      this.values[metric].push(row[metric]);
    }
  }

  private cut(many: number): void {
    this.times.splice(0, many);
    for (const metric of METRICS) {
      this.values[metric].splice(0, many);
    }
  }
}
