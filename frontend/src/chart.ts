/** One metric of one device over the last 15 minutes: drawn by uPlot, while it can be seen, when its data have changed. */

import uPlot from 'uplot';

import { make, setAttribute, setText } from './dom';
import { SPAN_SECONDS, type Metric, type Series } from './series';
import { clock } from './units';

const HEIGHT = 92;
const SPANS: [number, string, string][] = [
  [60, '−40 s', '−20 s'],
  [180, '−2 min', '−1 min'],
  [360, '−4 min', '−2 min'],
  [SPAN_SECONDS, '−10 min', '−5 min']
];
const TEXT_SECONDS = 20; // between two changes of what a screen reader is told

export interface Shown {
  text: string; // the value now, with its unit
  max: number; // of the scale
  min?: number;
  limit: number | null; // a dashed line
}

/** Colours and font, read from the theme when it changes and not at each drawing. */
class Paint {
  private values = new Map<string, string>();

  constructor(private readonly node: HTMLElement) {}

  get(name: string): string {
    let value = this.values.get(name);
    if (value === undefined) {
      value = getComputedStyle(this.node).getPropertyValue(name).trim() || 'gray';
      this.values.set(name, value);
    }
    return value;
  }

  forget(): void {
    this.values.clear();
  }
}

export class Chart {
  readonly node: HTMLElement;
  private readonly value = make('span', { class: 'rocmlab-Chart-value' });
  private readonly title: HTMLElement;
  private readonly plot = make('div', { class: 'rocmlab-Chart-plot', role: 'img' });
  private readonly paint = new Paint(this.plot);
  private uplot: uPlot | null = null;
  private shown: Shown = { text: '', max: 1, limit: null };
  private drawn = -1; // version of the series that is on the screen
  private end = 0;
  private spoken = -Infinity;
  private isHovered = false;

  constructor(
    private readonly metric: Metric,
    private readonly series: Series,
    private readonly what: string, // for a screen reader: busy of GPU 0
    private readonly format: (value: number | null) => string,
    group: string
  ) {
    this.title = make('span', { class: 'rocmlab-Chart-title' });
    const head = make('div', { class: 'rocmlab-Chart-head' }, this.title, this.value);
    this.node = make('div', { class: `rocmlab-Chart rocmlab-mod-${metric}` }, head, this.plot);
    this.group = group;
  }

  private readonly group: string;

  update(title: string, shown: Shown): void {
    const isRescaled = shown.max !== this.shown.max || shown.limit !== this.shown.limit;
    this.shown = shown;
    setText(this.title, title);
    if (!this.isHovered) {
      setText(this.value, shown.text);
    }
    const now = performance.now() / 1000;
    if (now - this.spoken > TEXT_SECONDS) {
      this.spoken = now;
      setAttribute(this.plot, 'aria-label', this.describe());
    }
    if (isRescaled) {
      this.drawn = -1;
    }
  }

  /** Draw what has changed since it was drawn last. Called only while it is on the screen. */
  draw(now: number): void {
    const width = Math.floor(this.plot.clientWidth);
    if (width < 40) {
      return;
    }
    if (this.uplot === null) {
      this.uplot = new uPlot(this.options(width), this.data(), this.plot);
    } else if (this.uplot.width !== width) {
      this.uplot.setSize({ width, height: HEIGHT });
    }
    if (this.drawn !== this.series.version || now - this.end >= 1) {
      this.end = now;
      this.drawn = this.series.version;
      this.uplot.setData(this.data());
    }
  }

  repaint(): void {
    this.paint.forget();
    this.uplot?.redraw(false, true);
  }

  dispose(): void {
    this.uplot?.destroy();
    this.uplot = null;
  }

  private data(): uPlot.AlignedData {
    return [this.series.times, this.series.values[this.metric]];
  }

  /** Return how much is shown, in seconds, and what stands below it: a young series fills the chart sooner. */
  private get span(): [number, string, string] {
    const age = this.end - (this.series.times[0] ?? this.end);
    return SPANS.find(([seconds]) => age <= seconds) ?? SPANS[SPANS.length - 1] ?? [SPAN_SECONDS, '', ''];
  }

  private describe(): string {
    const known = this.series.values[this.metric].filter(value => value !== null);
    if (known.length === 0) {
      return `${this.what}: now ${this.shown.text}; no data for the last 15 minutes`;
    }
    const low = known.reduce((one, other) => Math.min(one, other));
    const high = known.reduce((one, other) => Math.max(one, other));
    const mean = known.reduce((one, other) => one + other, 0) / known.length;
    const [least, average, most] = [low, mean, high].map(value => this.format(value));
    return `${this.what}: now ${this.shown.text}; in the last 15 minutes between ${least} and ${most}, on average ${average}`;
  }

  private options(width: number): uPlot.Options {
    const font = `10px ${this.paint.get('--jp-ui-font-family')}`;
    const axis: uPlot.Axis = {
      stroke: () => this.paint.get('--jp-ui-font-color2'),
      font,
      grid: { stroke: () => this.paint.get('--rocmlab-grid'), width: 1 },
      ticks: { show: false },
      gap: 3
    };
    return {
      width,
      height: HEIGHT,
      padding: [6, 4, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { size: 6 },
        drag: { x: false, y: false, setScale: false },
        sync: { key: this.group, setSeries: false }
      },
      scales: {
        x: { time: true, range: () => [this.end - this.span[0], this.end] },
        y: { range: () => [this.shown.min ?? 0, this.shown.max] }
      },
      axes: [
        {
          ...axis,
          size: 16,
          splits: () => [1, 2 / 3, 1 / 3, 0].map(share => this.end - share * this.span[0]),
          values: () => ['', this.span[1], this.span[2], '']
        },
        {
          ...axis,
          size: 34,
          splits: () => {
            const low = this.shown.min ?? 0;
            return [low, (low + this.shown.max) / 2, this.shown.max];
          },
          values: (_plot, splits) => splits.map(split => this.label(split))
        }
      ],
      series: [
        {},
        {
          stroke: () => this.paint.get(`--rocmlab-${this.metric}`),
          fill: () => this.paint.get(`--rocmlab-${this.metric}-fill`),
          width: 1.5,
          points: { show: false },
          spanGaps: false
        }
      ],
      hooks: { draw: [plot => this.drawLimit(plot)], setCursor: [plot => this.hover(plot)] }
    };
  }

  /** Return what stands at the vertical axis: a number without its unit, which the value above has. */
  private label(value: number): string {
    return this.metric === 'memory' ? String(Number((value / 1024 ** 3).toFixed(1))) : value.toFixed(0);
  }

  private drawLimit(plot: uPlot): void {
    const { limit } = this.shown;
    if (limit === null) {
      return;
    }
    const { ctx, bbox } = plot;
    const y = Math.round(plot.valToPos(limit, 'y', true)) + 0.5;
    ctx.save();
    ctx.strokeStyle = this.paint.get('--rocmlab-limit');
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  private hover(plot: uPlot): void {
    const index = plot.cursor.idx;
    this.isHovered = index !== null && index !== undefined && (plot.cursor.left ?? -1) >= 0;
    if (!this.isHovered || index === null || index === undefined) {
      setText(this.value, this.shown.text);
      return;
    }
    const time = this.series.times[index] ?? null;
    const value = this.series.values[this.metric][index] ?? null;
    const seconds = time === null ? '' : String(new Date(time * 1000).getSeconds()).padStart(2, '0');
    setText(this.value, `${this.format(value)} at ${clock(time)}:${seconds}`);
  }
}
