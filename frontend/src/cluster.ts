/** The cluster that this lab is a node of: its machines, their GPUs, and what runs on each. */

import { List, make, setAttribute, setHidden, setText, type View } from './dom';
import type { Cluster, ClusterDevice, ClusterNode, Problem } from './model';
import { ProblemView } from './notices';
import type { Store } from './store';
import { bytesOf, count, duration, percent, plain, UNKNOWN } from './units';

const PAUSE_SECONDS = 5; // between two questions, while somebody looks
const HEADERS = ['GPU', 'Product', 'Busy', 'Memory', 'Used by'];

function deviceName(device: ClusterDevice): string {
  const name = device.index === null ? device.id : `GPU ${device.index}`;
  return device.gfx === null ? name : `${name} (${device.gfx})`;
}

/** Return who leases a GPU, in the words of the other table. */
function userOf(device: ClusterDevice): string {
  const { lease } = device;
  if (!device.is_usable) {
    return `not usable: ${plain(device.why_not ?? 'the reason is unknown')}`;
  }
  if (device.is_lease_unknown === true) {
    return 'unknown: its leases cannot be read';
  }
  if (lease === null) {
    return 'free: no lease';
  }
  return plain(lease.notebook ?? lease.owner ?? 'a lease');
}

class DeviceRow implements View<ClusterDevice> {
  readonly node: HTMLElement;
  private readonly name = make('th', { scope: 'row' });
  private readonly cells = HEADERS.slice(1).map(() => make('td'));

  constructor() {
    this.node = make('tr', {}, this.name, ...this.cells);
  }

  update(device: ClusterDevice): void {
    setText(this.name, plain(deviceName(device)));
    const busy = device.is_asleep ? 'asleep' : percent(device.busy_percent);
    const memory = bytesOf(device.memory_used_bytes, device.memory_total_bytes);
    const texts = [plain(device.name), busy, memory, userOf(device)];
    this.cells.forEach((cell, index) => setText(cell, texts[index] ?? UNKNOWN));
    const { lease } = device;
    const who = lease === null ? '' : [lease.owner, lease.host].filter(Boolean).join(' on ');
    setAttribute(this.cells[this.cells.length - 1] ?? this.name, 'title', who || null);
  }
}

class NodeView implements View<ClusterNode> {
  readonly node: HTMLElement;
  private readonly name = make('h3', { class: 'rocmlab-Node-name' });
  private readonly detail = make('span', { class: 'rocmlab-Node-detail' });
  private readonly chips: [string, HTMLElement][];
  private readonly none = make('p', { class: 'rocmlab-None' });
  private readonly running = make('p', { class: 'rocmlab-Node-running' });
  private readonly table: HTMLElement;
  private readonly rows: List<ClusterDevice>;

  constructor() {
    const chip = (text: string, kind: 'warn' | 'quiet'): [string, HTMLElement] => [
      text,
      make('span', { class: `rocmlab-Chip rocmlab-mod-${kind}` }, text)
    ];
    this.chips = [
      chip('lost', 'warn'),
      chip('head', 'quiet'),
      chip('this lab', 'quiet'),
      chip('SIMULATED', 'warn')
    ];
    const body = make('tbody');
    const headers = HEADERS.map(header => make('th', { scope: 'col' }, header));
    this.table = make(
      'table',
      { class: 'rocmlab-NodeTable' },
      make('thead', {}, make('tr', {}, ...headers)),
      body
    );
    this.node = make(
      'li',
      { class: 'rocmlab-Node' },
      make(
        'div',
        { class: 'rocmlab-Node-head' },
        this.name,
        ...this.chips.map(([, each]) => each),
        this.detail
      ),
      this.table,
      this.none,
      this.running
    );
    this.rows = new List(
      body,
      device => device.id,
      () => new DeviceRow()
    );
  }

  update(node: ClusterNode): void {
    const name = plain(node.hostname);
    setText(this.name, name);
    setAttribute(this.table, 'aria-label', `GPUs of ${name}`);
    this.node.classList.toggle('rocmlab-mod-lost', !node.is_alive);
    const shown: Record<string, boolean> = {
      lost: !node.is_alive,
      head: node.is_head,
      'this lab': node.is_here,
      SIMULATED: node.simulated
    };
    for (const [text, chip] of this.chips) {
      setHidden(chip, shown[text] !== true);
    }
    const details = [
      node.address,
      node.cpus === null ? null : count(node.cpus, 'core'),
      node.rocm === null ? null : `ROCm ${node.rocm}`
    ];
    setText(this.detail, plain(details.filter(each => each !== null).join(' · ')));
    const devices = node.devices ?? [];
    this.rows.update(devices);
    setHidden(this.table, devices.length === 0);
    setText(this.none, this.why(node));
    setHidden(this.none, devices.length > 0);
    const running = this.given(node);
    setText(this.running, running);
    setHidden(this.running, running === '');
  }

  /** Return what Ray runs there, which need not have a lease. */
  private given(node: ClusterNode): string {
    const parts = [
      node.gpus_given ? `${node.gpus_given} of ${count(node.gpus, 'GPU')}` : '',
      node.jobs_without_gpu ? `${count(node.jobs_without_gpu, 'job')} without a GPU` : ''
    ].filter(Boolean);
    return parts.length === 0 ? '' : `Ray's tasks have ${parts.join(' and ')}.`;
  }

  /** Return why no GPU is shown. */
  private why(node: ClusterNode): string {
    if (!node.is_alive) {
      return 'It no longer answers. Its jobs run elsewhere or have failed.';
    }
    if (node.problem !== null) {
      return plain(`${node.problem.what}: ${node.problem.why}`);
    }
    return node.devices === null ? 'waiting for an answer…' : 'No GPU.';
  }
}

function summarize(cluster: Cluster): string {
  const alive = cluster.nodes.filter(node => node.is_alive);
  const lost = cluster.nodes.length - alive.length;
  const gpus = alive.reduce((sum, node) => sum + (node.devices?.length ?? node.gpus), 0);
  const parts = [count(alive.length, 'node'), ...(lost > 0 ? [`${lost} lost`] : []), count(gpus, 'GPU')];
  return parts.join(' · ');
}

export class ClusterSection {
  readonly node: HTMLElement;
  private readonly summary = make('span', { class: 'rocmlab-Summary' });
  private readonly old = make('p', { class: 'rocmlab-None' });
  private readonly nodes: List<ClusterNode>;
  private readonly problems: List<Problem>;
  private readonly nodesNode = make('ul', { class: 'rocmlab-Plain' });
  private timer = 0;
  private isActive = false;
  private isAsking = false;
  private problem = ''; // that was told last

  constructor(
    private readonly store: Store,
    private readonly say: (text: string) => void
  ) {
    const problemsNode = make('ul', { class: 'rocmlab-Plain' });
    const head = make('div', { class: 'rocmlab-Head' }, make('h2', {}, 'Cluster'), this.summary);
    this.node = make(
      'section',
      { class: 'rocmlab-Section rocmlab-Cluster', 'aria-label': 'Cluster' },
      head,
      problemsNode,
      this.old,
      this.nodesNode
    );
    this.nodes = new List(
      this.nodesNode,
      node => node.id,
      () => new NodeView()
    );
    this.problems = new List(
      problemsNode,
      each => `${each.what}\n${each.why}`,
      each => new ProblemView(each, this.say)
    );
    setHidden(this.node, true);
  }

  /** Ask now and then, or no more. */
  setActive(active: boolean): void {
    this.isActive = active;
    window.clearTimeout(this.timer);
    this.timer = 0;
    if (active) {
      void this.ask();
    }
  }

  /** Whether this lab is in a cluster is known, or known anew. */
  follow(): void {
    if (!this.store.isInCluster) {
      setHidden(this.node, true);
    } else if (this.isActive && this.timer === 0) {
      void this.ask();
    }
  }

  private async ask(): Promise<void> {
    if (!this.store.isInCluster || this.isAsking) {
      return;
    }
    this.isAsking = true;
    try {
      const told = document.visibilityState === 'hidden' ? null : await this.told();
      if (told !== null) {
        this.show(told);
      }
    } finally {
      this.isAsking = false;
      if (this.isActive) {
        window.clearTimeout(this.timer);
        this.timer = window.setTimeout(() => void this.ask(), PAUSE_SECONDS * 1000);
      }
    }
  }

  private async told(): Promise<Cluster | null> {
    try {
      const response = await this.store.host.request('api/cluster');
      return response.ok ? ((await response.json()) as Cluster) : null;
    } catch {
      return null; // the stream notices that the server is gone, and says so
    }
  }

  private show(cluster: Cluster): void {
    setHidden(this.node, false);
    setAttribute(this.node, 'data-state', cluster.state);
    setText(this.summary, cluster.nodes.length > 0 ? summarize(cluster) : 'waiting for an answer…');
    this.problems.update(cluster.problem === null ? [] : [cluster.problem]);
    const isOld = cluster.state === 'lost' && cluster.nodes.length > 0;
    const age = cluster.age_seconds === null ? '' : ` ${duration(cluster.age_seconds)} ago`;
    setText(this.old, `Last known state${age === '' ? '' : `,${age}`}.`);
    setHidden(this.old, !isOld);
    this.nodesNode.classList.toggle('rocmlab-mod-old', isOld);
    this.nodes.update(cluster.nodes);
    const problem = cluster.problem?.what ?? '';
    if (problem !== this.problem) {
      this.problem = problem;
      this.say(problem === '' ? 'The cluster answers again.' : `Problem: ${problem}.`);
    }
  }
}
