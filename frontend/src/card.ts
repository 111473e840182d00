/** One device: who has it, its charts, and the rest of what it reports. */

import { Chart, type Shown } from './chart';
import { List, make, setHidden, setText, type View } from './dom';
import { isGpu, memoryName, memoryOf, shortName, type Device, type Lease, type Sample } from './model';
import { temperatureOf, type Metric, type Series } from './series';
import type { Store } from './store';
import {
  bytes,
  bytesOf,
  celsius,
  clock,
  energy,
  hertz,
  percent,
  plain,
  UNKNOWN,
  watts,
  wattsOf,
  withUnit
} from './units';

interface Fact {
  name: string;
  text: string;
}

export interface Chip {
  text: string;
  kind: 'warn' | 'quiet';
  title: string;
}

class FactView implements View<Fact> {
  readonly node: HTMLElement;
  private readonly text = make('dd');

  constructor(fact: Fact) {
    this.node = make('div', {}, make('dt', {}, fact.name), this.text);
  }

  update(fact: Fact): void {
    setText(this.text, fact.text);
  }
}

export class ChipView implements View<Chip> {
  readonly node = make('span', { class: 'rocmlab-Chip' });

  update(chip: Chip): void {
    this.node.className = `rocmlab-Chip rocmlab-mod-${chip.kind}`;
    this.node.title = chip.title;
    setText(this.node, chip.text);
  }
}

function sum(errors: Record<string, number> | null): number {
  return Object.values(errors ?? {}).reduce((one, other) => one + other, 0);
}

/** Return why a GPU runs slower than it could: at its power limit is as it should be, everything else is not. */
function throttling(reasons: string[]): Chip {
  if (reasons.every(reason => /^([FS]?PPT|SPL)/.test(reason))) {
    return { text: 'at its power limit', kind: 'quiet', title: reasons.join(', ') };
  }
  return { text: `throttles: ${reasons.join(', ')}`, kind: 'warn', title: 'it runs slower than it could' };
}

/** What to call a target that ROCm does not support, as `rocmlab devices` does, and why it may not work. */
const CAVEATS: Record<string, [string, string]> = {
  unknown: ['may not work', "no list of ROCm's targets has it"],
  unsupported: ['unsupported', "ROCm's usual packages have no kernels for it"],
  wrong: ['wrong results', "ROCm's packages for it install and compute wrong results"]
};
const SUPPORT: Record<string, string> = {
  works: 'supported',
  override: 'works with HSA_OVERRIDE_GFX_VERSION, which is not set',
  overridden: 'an override is set that makes it pass as another target'
};

function caveat(device: Device): [string, string] | undefined {
  return device.support === null ? undefined : CAVEATS[device.support];
}

/** Return what a person should not overlook. */
export function chips(device: Device, sample: Sample | undefined): Chip[] {
  const found: Chip[] = [];
  const warn = (text: string, title = ''): number => found.push({ text, kind: 'warn', title });
  if (!device.is_usable && isGpu(device)) {
    warn('not usable', device.why_not ?? '');
  }
  const [word, why] = caveat(device) ?? [];
  if (word !== undefined) {
    warn(word, `${device.gfx ?? 'its target'}: ${why}; make doctor shows what to try`);
  }
  if (sample === undefined) {
    return found;
  }
  if (sample.is_asleep) {
    found.push({
      text: 'asleep',
      kind: 'quiet',
      title: 'suspended by the driver; it is not read, so as not to wake it'
    });
  }
  if (sample.throttle_reasons !== null && sample.throttle_reasons.length > 0) {
    found.push(throttling(sample.throttle_reasons));
  }
  const most = device.link_width_max;
  if (sample.link_width !== null && most !== null && sample.link_width < most) {
    warn(`PCIe x${sample.link_width} of x${most}`, 'fewer lanes are in use than card and slot can have');
  }
  const uncorrected = sum(sample.ecc_uncorrected);
  if (uncorrected > 0) {
    warn(
      `${uncorrected} uncorrected ECC`,
      Object.entries(sample.ecc_uncorrected ?? {})
        .filter(([, many]) => many > 0)
        .join('; ')
    );
  }
  const { now, limit } = temperatureOf(sample);
  if (now !== null && limit !== null && now >= limit - 3) {
    warn(`hot: ${celsius(now)}`, `the limit is ${celsius(limit)}`);
  }
  return found;
}

function temperatures(sample: Sample): string {
  const parts: [string, number | null][] = [
    ['edge', sample.edge_celsius],
    ['hotspot', sample.junction_celsius],
    ['memory', sample.memory_celsius]
  ];
  return parts
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${celsius(value)}`)
    .join(', ');
}

function clockText(now: number | null, most: number | null): string {
  return now === null ? '' : most === null ? hertz(now) : `${hertz(now)} of ${hertz(most)}`;
}

function eccText(sample: Sample): string {
  if (sample.ecc_corrected === null && sample.ecc_uncorrected === null) {
    return '';
  }
  return `${sum(sample.ecc_corrected)} corrected, ${sum(sample.ecc_uncorrected)} not`;
}

function linkText(sample: Sample): string {
  const parts = [
    sample.link_width === null ? '' : `x${sample.link_width}`,
    sample.link_speed_gts === null ? '' : withUnit(sample.link_speed_gts, 'GT/s')
  ];
  return parts.filter(Boolean).join(', ');
}

function fanText(sample: Sample): string {
  const parts = [
    sample.fan_percent === null ? '' : percent(sample.fan_percent),
    sample.fan_rpm === null ? '' : withUnit(sample.fan_rpm, 'rpm')
  ];
  return parts.filter(Boolean).join(', ');
}

function reported(device: Device, sample: Sample, joules: number | null): [string, string][] {
  return [
    ['Core clock', clockText(sample.core_clock_hertz, sample.core_clock_max_hertz)],
    ['Memory clock', clockText(sample.memory_clock_hertz, sample.memory_clock_max_hertz)],
    ['Memory busy', sample.memory_busy_percent === null ? '' : percent(sample.memory_busy_percent)],
    ['Temperatures', temperatures(sample)],
    ['Fan', fanText(sample)],
    ['Energy since the first reading', joules === null ? '' : energy(joules)],
    ['PCIe now', linkText(sample)],
    ['PCIe replays', sample.pcie_replays === null ? '' : String(sample.pcie_replays)],
    ['ECC errors', eccText(sample)],
    ['Performance level', sample.performance_level ?? ''],
    ...memories(device, sample)
  ];
}

/** Return both memories of an APU, and from which of them frameworks allocate. */
function memories(device: Device, sample: Sample): [string, string][] {
  if (device.pool === null) {
    return [];
  }
  const gtt = sample.gtt_total_bytes === null ? '' : bytesOf(sample.gtt_used_bytes, sample.gtt_total_bytes);
  const vram =
    sample.vram_total_bytes === null ? '' : bytesOf(sample.vram_used_bytes, sample.vram_total_bytes);
  const limit = device.pool_bytes === null ? '' : `, at most ${bytes(device.pool_bytes)}`;
  return [
    ['Frameworks allocate from', `${memoryName(device)}${limit}`],
    ['GTT in use', gtt && `${gtt}; hipMalloc is not counted`],
    ['VRAM in use', vram]
  ];
}

function identity(device: Device): [string, string][] {
  const smi = device.smi_index === null ? '' : String(device.smi_index);
  return [
    ['PCI address', device.pci_address ?? ''],
    ['HIP index', device.backend === 'rocm' && device.index !== null ? String(device.index) : ''],
    [device.backend === 'cuda' ? 'nvidia-smi index' : 'SMI index', smi],
    ['Render node', device.render_node ?? ''],
    ['Target', device.gfx ?? ''],
    [
      'ROCm on this target',
      device.support === null ? '' : (SUPPORT[device.support] ?? caveat(device)?.join(': ') ?? '')
    ],
    [
      'Partition',
      device.partition === null ? '' : `${device.partition} (${device.compute_partition ?? UNKNOWN})`
    ],
    ['Driver', device.driver ?? ''],
    ['Not usable', device.is_usable ? '' : (device.why_not ?? '')]
  ];
}

/** Return everything else that is known of a device; what it does not report is left out. */
function facts(device: Device, sample: Sample | undefined, joules: number | null): Fact[] {
  const isRead = sample !== undefined && !sample.is_asleep;
  const found = [...(isRead ? reported(device, sample, joules) : []), ...identity(device)];
  return found.filter(([, text]) => text !== '').map(([name, text]) => ({ name, text: plain(text) }));
}

const FORMATS: Record<Metric, (value: number | null) => string> = {
  busy: percent,
  memory: bytes,
  power: watts,
  temperature: celsius
};

export class Card implements View<Device> {
  readonly node: HTMLElement;
  isVisible = false; // on the screen, as the browser says
  private readonly name = make('h3', { class: 'rocmlab-Card-name' });
  private readonly product = make('span', { class: 'rocmlab-Card-product' });
  private readonly chips = make('span', { class: 'rocmlab-Card-chips' });
  private readonly lease = make('p', { class: 'rocmlab-Card-lease' });
  private readonly charts = make('div', { class: 'rocmlab-Card-charts' });
  private readonly facts = make('dl', { class: 'rocmlab-Card-facts' });
  private readonly details: HTMLDetailsElement;
  private readonly chipList = new List<Chip>(
    this.chips,
    chip => chip.text.replace(/\d+/g, ''),
    () => new ChipView()
  );
  private readonly factList = new List<Fact>(
    this.facts,
    fact => fact.name,
    fact => new FactView(fact)
  );
  private byMetric = new Map<Metric, Chart>();
  private series: Series | undefined;

  constructor(
    private readonly store: Store,
    private device: Device
  ) {
    this.details = make(
      'details',
      { class: 'rocmlab-Card-details' },
      make('summary', {}, 'Details'),
      this.facts
    );
    this.details.addEventListener('toggle', () => this.updateFacts());
    const head = make('div', { class: 'rocmlab-Card-head' }, this.name, this.product, this.chips);
    this.node = make(
      'article',
      { class: `rocmlab-Card rocmlab-mod-${device.backend}`, 'data-device': device.id },
      head,
      this.lease,
      this.charts,
      this.details
    );
  }

  update(device: Device): void {
    this.device = device;
    const sample = this.store.samples[device.id];
    const name = shortName(device, device.id);
    setText(this.name, name);
    setText(this.product, plain(device.name));
    this.node.setAttribute('aria-label', `${name}, ${plain(device.name)}`);
    this.node.classList.toggle('rocmlab-mod-asleep', sample?.is_asleep === true);
    this.chipList.update(chips(device, sample));
    this.updateLease();
    this.updateCharts(sample);
    this.updateFacts();
  }

  /** Draw the charts if they can be seen. */
  draw(now: number): void {
    if (this.isVisible) {
      for (const chart of this.byMetric.values()) {
        chart.draw(now);
      }
    }
  }

  repaint(): void {
    for (const chart of this.byMetric.values()) {
      chart.repaint();
    }
  }

  dispose(): void {
    for (const chart of this.byMetric.values()) {
      chart.dispose();
    }
    this.byMetric.clear();
  }

  private updateLease(): void {
    const { leases } = this.store;
    setHidden(this.lease, leases === null || !isGpu(this.device));
    const lease = leases?.find(each => each.device === this.device.id);
    this.lease.classList.toggle('rocmlab-mod-held', lease !== undefined);
    setText(this.lease, lease === undefined ? 'free: no lease' : this.leaseText(lease));
  }

  private leaseText(lease: Lease): string {
    const since = lease.started === null ? '' : ` since ${clock(lease.started)}`;
    const notebook = plain(lease.notebook ?? 'an unknown notebook');
    if (lease.kernel_id !== null) {
      return `leased to ${notebook}${since}`;
    }
    const who = [lease.owner, lease.host].filter(Boolean).join(' on ');
    const process = lease.pid === null ? who : `process ${lease.pid}${who && ` of ${who}`}`;
    return `leased to ${notebook}${process && ` (${plain(process)})`}${since}`;
  }

  private updateCharts(sample: Sample | undefined): void {
    const series = this.store.series.get(this.device.id);
    if (series !== this.series) {
      this.dispose();
      this.charts.replaceChildren();
      this.series = series;
    }
    for (const [metric, title, shown] of this.shown(sample)) {
      this.chart(metric, title)?.update(title, shown);
    }
  }

  private shown(sample: Sample | undefined): [Metric, string, Shown][] {
    const asleep = sample?.is_asleep === true;
    const say = (text: string): string => (asleep ? 'asleep' : text);
    const memory = memoryOf(this.device, sample);
    const found: [Metric, string, Shown][] = [
      ['busy', 'Busy', { text: say(percent(sample?.busy_percent)), max: 100, limit: null }],
      [
        'memory',
        memoryName(this.device),
        { text: say(bytesOf(memory.used, memory.total)), max: this.memoryMax(memory.total), limit: null }
      ]
    ];
    if (isGpu(this.device)) {
      const cap = sample?.power_cap_watts ?? null;
      const { now, limit, name } = temperatureOf(sample);
      found.push(
        [
          'power',
          'Power',
          { text: say(wattsOf(sample?.power_watts, cap)), max: this.powerMax(cap), limit: cap }
        ],
        [
          'temperature',
          `Temperature, ${name}`,
          { text: say(celsius(now)), min: 20, max: Math.max(100, (limit ?? 0) + 10), limit }
        ]
      );
    }
    return found;
  }

  private memoryMax(total: number | null): number {
    return total ?? Math.max(1024 ** 3, this.most('memory'));
  }

  private powerMax(cap: number | null): number {
    return Math.ceil(Math.max((cap ?? 0) * 1.1, this.most('power') * 1.05, 20) / 10) * 10;
  }

  private most(metric: Metric): number {
    return (this.series?.values[metric] ?? []).reduce<number>((one, other) => Math.max(one, other ?? 0), 0);
  }

  private chart(metric: Metric, title: string): Chart | undefined {
    let chart = this.byMetric.get(metric);
    if (chart === undefined && this.series !== undefined) {
      const what = `${title} of ${shortName(this.device, this.device.id)}`;
      chart = new Chart(metric, this.series, what, FORMATS[metric], `rocmlab ${this.device.id}`);
      this.byMetric.set(metric, chart);
      this.charts.append(chart.node);
    }
    return chart;
  }

  private updateFacts(): void {
    if (this.details.open) {
      const { samples, energy: joules } = this.store;
      this.factList.update(facts(this.device, samples[this.device.id], joules[this.device.id] ?? null));
    }
  }
}
