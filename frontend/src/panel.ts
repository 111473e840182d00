/** The panel: everything of `Store` on the screen, the same in JupyterLab and on the page of its own. */

import { Card } from './card';
import { ClusterSection } from './cluster';
import { button, List, make, setAttribute, setHidden, setText } from './dom';
import { deviceNames, holders, memoryText, type Holder } from './holders';
import { isGpu, memoryOf, type Device, type IdleHolder, type Problem } from './model';
import { idleName, IdleView, ProblemView } from './notices';
import { STATUS, type Change, type Store } from './store';
import type { Status } from './stream';
import { HoldersTable, type Action } from './table';
import { bytes, bytesOf, count, watts } from './units';

const BUSY_PERCENT = 5; // less is a desktop's

const DOING: Record<Action, string> = {
  interrupt: 'being interrupted…',
  restart: 'restarting…',
  shutdown: 'shutting down…'
};

const DONE: Record<Action, string> = {
  interrupt: 'was interrupted',
  restart: 'was restarted',
  shutdown: 'was shut down'
};

export class Panel {
  readonly node: HTMLElement;
  private readonly banner = make(
    'p',
    { class: 'rocmlab-Banner' },
    make('strong', {}, 'SIMULATED'),
    ': these GPUs are files in a folder, not hardware.'
  );
  private readonly summary = make('p', { class: 'rocmlab-Summary' });
  private readonly status = make('span', { class: 'rocmlab-Status' });
  private readonly spoken = make('div', {
    class: 'rocmlab-mod-unseen',
    role: 'status',
    'aria-live': 'polite'
  });
  private readonly alert = make('div', { class: 'rocmlab-Alert', role: 'alert' });
  private readonly warnings: HTMLElement;
  private readonly cardsNode = make('div', { class: 'rocmlab-Cards' });
  private readonly noGpu = make(
    'p',
    { class: 'rocmlab-None' },
    'No GPU was found: notebooks run on the CPU.'
  );
  private readonly problemsSection: HTMLElement;
  private readonly cards: List<Device>;
  private readonly idle: List<IdleHolder>;
  private readonly problems: List<Problem>;
  private readonly table: HoldersTable;
  private readonly cluster: ClusterSection;
  private readonly allCards = new Map<Element, Card>();
  private readonly sight: IntersectionObserver;
  private readonly sizes: ResizeObserver;
  private unwatch: (() => void) | null = null;
  private frame = 0;
  private known: Set<string> | null = null; // idle holders and problems that were announced
  private before: Status = 'closed';

  constructor(private readonly store: Store) {
    const idleNode = make('ul', { class: 'rocmlab-Plain' });
    const problemsNode = make('ul', { class: 'rocmlab-Plain' });
    this.warnings = make(
      'section',
      { class: 'rocmlab-Section', 'aria-label': 'Idle notebooks that hold GPU memory' },
      idleNode
    );
    this.problemsSection = make(
      'section',
      { class: 'rocmlab-Section' },
      make('h2', {}, 'Problems'),
      problemsNode
    );
    this.table = new HoldersTable(store, (action, holder) => void this.act(action, holder));
    this.cluster = new ClusterSection(store, text => this.say(text));
    const dismiss = button('Dismiss', () => this.fail(''), {});
    this.alert.append(make('span'), dismiss);
    setHidden(this.alert, true);
    const head = make('header', { class: 'rocmlab-Head' }, make('h1', {}, 'GPUs'), this.summary, this.status);
    const devices = make(
      'section',
      { class: 'rocmlab-Section' },
      make('h2', { class: 'rocmlab-mod-unseen' }, 'Devices'),
      this.noGpu,
      this.cardsNode
    );
    this.node = make(
      'div',
      { class: 'rocmlab-Panel' },
      this.banner,
      head,
      this.alert,
      this.warnings,
      this.table.node,
      devices,
      this.cluster.node,
      this.problemsSection,
      this.spoken
    );
    this.sight = new IntersectionObserver(entries => this.seen(entries), { rootMargin: '50px' });
    this.sizes = new ResizeObserver(() => this.draw());
    this.cards = new List(
      this.cardsNode,
      device => device.id,
      device => this.addCard(device)
    );
    this.idle = new List(
      idleNode,
      each => each.kernel_id,
      each => new IdleView(store, each, one => void this.free(one))
    );
    this.problems = new List(
      problemsNode,
      each => `${each.what}\n${each.why}`,
      each => new ProblemView(each, text => this.say(text))
    );
    this.update('all');
  }

  /** Look, or stop looking: a panel that cannot be seen costs nothing. */
  setActive(active: boolean): void {
    if (active && this.unwatch === null) {
      this.unwatch = this.store.watch(change => this.update(change));
      this.sizes.observe(this.node);
      this.cluster.setActive(true);
      this.update('all');
    } else if (!active && this.unwatch !== null) {
      this.unwatch();
      this.unwatch = null;
      this.cluster.setActive(false);
      this.sizes.disconnect();
    }
  }

  /** The theme has changed. */
  repaint(): void {
    for (const card of this.allCards.values()) {
      card.repaint();
    }
  }

  dispose(): void {
    this.setActive(false);
    this.sight.disconnect();
    this.cards.dispose();
    window.cancelAnimationFrame(this.frame);
  }

  private addCard(device: Device): Card {
    const card = new Card(this.store, device);
    this.allCards.set(card.node, card);
    this.sight.observe(card.node);
    return card;
  }

  private seen(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const card = this.allCards.get(entry.target);
      if (card === undefined || !this.node.contains(card.node)) {
        this.allCards.delete(entry.target);
        this.sight.unobserve(entry.target);
      } else {
        card.isVisible = entry.isIntersecting;
      }
    }
    this.draw();
  }

  private draw(): void {
    if (this.frame === 0 && this.unwatch !== null) {
      this.frame = window.requestAnimationFrame(() => {
        this.frame = 0;
        for (const card of this.allCards.values()) {
          card.draw(this.store.time);
        }
      });
    }
  }

  private update(change: Change): void {
    this.updateStatus();
    if (change === 'status') {
      return;
    }
    const { store } = this;
    const gpus = store.devices.filter(isGpu);
    setHidden(this.banner, !store.simulated);
    setHidden(this.noGpu, !store.isLoaded || gpus.length > 0);
    setText(this.summary, this.summarize(gpus));
    // Beside GPUs the CPU is one line.
    this.cardsNode.classList.toggle('rocmlab-mod-gpus', gpus.length > 0);
    this.cards.update([...gpus, ...store.devices.filter(device => !isGpu(device))]);
    this.table.update(holders(store));
    this.idle.update(store.idle);
    setHidden(this.warnings, store.idle.length === 0);
    this.problems.update(store.problems);
    setHidden(this.problemsSection, store.problems.length === 0);
    if (change === 'all') {
      this.cluster.follow();
    }
    this.announce();
    this.draw();
  }

  private updateStatus(): void {
    const { status } = this.store;
    setText(this.status, STATUS[status]);
    setAttribute(this.status, 'data-status', status);
    this.node.classList.toggle('rocmlab-mod-old', status === 'lost' || status === 'refused');
    const isBad = status === 'lost' || status === 'refused';
    const wasBad = this.before === 'lost' || this.before === 'refused';
    if (isBad !== wasBad && (isBad || status === 'live')) {
      this.say(isBad ? STATUS[status] : 'Connected again.');
    }
    if (isBad || status === 'live') {
      this.before = status;
    }
  }

  private summarize(gpus: Device[]): string {
    const { samples } = this.store;
    if (gpus.length === 0) {
      return '';
    }
    const found = gpus.map(device => ({ device, sample: samples[device.id] }));
    const parts = [count(gpus.length, 'GPU')];
    const known = found.filter(({ sample }) => sample?.busy_percent != null);
    if (known.length > 0) {
      parts.push(`${known.filter(({ sample }) => (sample?.busy_percent ?? 0) >= BUSY_PERCENT).length} busy`);
    }
    const memory = found
      .map(({ device, sample }) => memoryOf(device, sample))
      .filter(each => each.used !== null && each.total !== null);
    if (memory.length > 0) {
      const used = memory.reduce((sum, each) => sum + (each.used ?? 0), 0);
      parts.push(
        bytesOf(
          used,
          memory.reduce((sum, each) => sum + (each.total ?? 0), 0)
        )
      );
    }
    const power = found.flatMap(({ sample }) => (sample?.power_watts == null ? [] : [sample.power_watts]));
    if (power.length > 0) {
      parts.push(watts(power.reduce((one, other) => one + other, 0)));
    }
    return parts.join(' · ');
  }

  /** Tell a screen reader what is new since it was told last: warnings and problems, not numbers. */
  private announce(): void {
    const { idle, problems } = this.store;
    const now = new Map<string, string>();
    for (const each of idle) {
      now.set(`idle ${each.kernel_id}`, `${idleName(each)} is idle and holds ${bytes(each.vram_bytes)}.`);
    }
    for (const each of problems) {
      now.set(`problem ${each.what}`, `Problem: ${each.what}.`);
    }
    const before = this.known;
    const news = [...now].filter(([key]) => before !== null && !before.has(key)).map(([, text]) => text);
    if (this.store.isLoaded) {
      this.known = new Set(now.keys());
    }
    if (before === null && this.store.isLoaded) {
      news.unshift(`${this.summary.textContent ?? ''}.`);
    }
    if (news.length > 0) {
      this.say(news.join(' '));
    }
  }

  private say(text: string): void {
    setText(this.spoken, text);
  }

  private fail(text: string): void {
    const [words] = this.alert.children;
    if (words !== undefined) {
      setText(words, text);
    }
    setHidden(this.alert, text === '');
  }

  private async free(idle: IdleHolder): Promise<void> {
    const holder = holders(this.store).find(each => each.kernel?.kernel_id === idle.kernel_id);
    if (holder !== undefined) {
      await this.act('shutdown', holder);
    }
  }

  private async act(action: Action, holder: Holder): Promise<void> {
    const { kernel } = holder;
    if (kernel === null || !(await this.store.host.confirm(this.question(action, holder)))) {
      return;
    }
    this.table.pending(holder.key, DOING[action]);
    this.fail('');
    try {
      await this.store.act(kernel.kernel_id, action);
      this.say(`${holder.name} ${DONE[action]}.`);
    } catch (err) {
      this.fail(err instanceof Error ? err.message : String(err));
    } finally {
      this.table.pending(holder.key, '');
    }
  }

  private question(action: Action, holder: Holder): { title: string; text: string; action: string } {
    const devices = deviceNames(holder.devices, this.store.devices);
    const queue = holder.kernel?.queue != null;
    const memory = holder.vramBytes === null ? devices : `${memoryText(holder)} of ${devices}`;
    const texts: Record<Action, [string, string, string]> = {
      interrupt: [
        'Interrupt',
        'The running cell stops. Its variables and its GPU memory are kept.',
        'Interrupt'
      ],
      restart: [
        'Restart',
        queue
          ? 'It keeps its place in the queue.'
          : `Its variables are lost. It keeps its lease of ${devices}.`,
        'Restart'
      ],
      shutdown: [
        'Shut down',
        queue ? 'It leaves the queue.' : `Its variables are lost. That frees ${memory}.`,
        'Shut down'
      ]
    };
    const [title, text, label] = texts[action];
    return { title: `${title} ${holder.name}?`, text, action: label };
  }
}
