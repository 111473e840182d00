/** The GPUs in a column as narrow as a sidebar: for each what it does, and who has it. */

import { ChipView, chips, type Chip } from './card';
import { button, List, make, setAttribute, setHidden, setText, type View } from './dom';
import { HolderName } from './holdername';
import { holders, type Holder } from './holders';
import { isGpu, memoryName, memoryOf, shortName, type Device } from './model';
import { temperatureOf } from './series';
import { stateText, stateTitle } from './states';
import { STATUS, type Store } from './store';
import { bytesOf, celsius, count, percent, plain, watts } from './units';

/** A name, a value, and a bar for those who see it; where the value is unknown there is none. */
class Meter {
  readonly node: HTMLElement;
  private readonly name = make('span', { class: 'rocmlab-Meter-name' });
  private readonly value = make('span', { class: 'rocmlab-Meter-value' });
  private readonly fill = make('div');
  private readonly bar = make('div', { class: 'rocmlab-Meter-bar', 'aria-hidden': 'true' }, this.fill);

  constructor(kind: string) {
    this.node = make(
      'div',
      { class: `rocmlab-Meter rocmlab-mod-${kind}` },
      this.name,
      ' ',
      this.value,
      this.bar
    );
  }

  update(name: string, text: string, share: number | null): void {
    setText(this.name, name);
    setText(this.value, text);
    this.bar.classList.toggle('rocmlab-mod-unknown', share === null);
    this.fill.style.width = `${(100 * Math.min(1, Math.max(0, share ?? 0))).toFixed(1)}%`;
  }
}

/** A notebook, job or process: a link where it can be opened, and what it does. */
class HolderView implements View<Holder> {
  readonly node: HTMLElement;
  private readonly name: HolderName;
  private readonly state = make('span', { class: 'rocmlab-Compact-state' });

  constructor(private readonly store: Store) {
    this.name = new HolderName(store);
    this.node = make('li', {}, this.name.link, this.name.text, ' ', this.state);
  }

  update(holder: Holder): void {
    this.name.update(holder);
    setAttribute(this.node, 'title', holder.detail || null);
    const hasState = holder.kernel !== null || holder.processes[0]?.owner?.kernel_state != null;
    setText(this.state, hasState ? stateText(this.store, holder) : '');
    setAttribute(this.state, 'title', stateTitle(holder) || null);
  }
}

function listOf(store: Store, parent: HTMLElement): List<Holder> {
  return new List(
    parent,
    holder => holder.key,
    () => new HolderView(store)
  );
}

interface Item {
  device: Device;
  holders: Holder[];
}

class DeviceView implements View<Item> {
  readonly node: HTMLElement;
  private readonly name = make('h3');
  private readonly heat = make('span', { class: 'rocmlab-Compact-heat' });
  private readonly chips = make('p', { class: 'rocmlab-Compact-chips' });
  private readonly busy = new Meter('busy');
  private readonly memory = new Meter('memory');
  private readonly free = make('p', { class: 'rocmlab-None' }, 'free: no lease');
  private readonly users = make('ul', { class: 'rocmlab-Compact-users' });
  private readonly chipList = new List<Chip>(
    this.chips,
    chip => chip.text,
    () => new ChipView()
  );
  private readonly userList: List<Holder>;

  constructor(
    private readonly store: Store,
    item: Item
  ) {
    this.userList = listOf(store, this.users);
    this.node = make(
      'article',
      { class: 'rocmlab-Compact-device', 'data-device': item.device.id },
      make('div', { class: 'rocmlab-Compact-head' }, this.name, this.heat),
      this.chips,
      this.busy.node,
      this.memory.node,
      this.free,
      this.users
    );
  }

  update({ device, holders: users }: Item): void {
    const sample = this.store.samples[device.id];
    const name = shortName(device, device.id);
    const isAsleep = sample?.is_asleep === true;
    const busy = isAsleep ? null : (sample?.busy_percent ?? null);
    const memory = memoryOf(device, sample);
    const share = memory.used !== null && memory.total ? memory.used / memory.total : null;
    const { now } = sample === undefined ? { now: null } : temperatureOf(sample);
    const power = sample?.power_watts ?? null;
    setText(this.name, name);
    setAttribute(this.node, 'aria-label', `${name}, ${plain(device.name)}`);
    setAttribute(this.node, 'title', plain(device.name));
    setText(
      this.heat,
      [now === null ? '' : celsius(now), power === null ? '' : watts(power)].filter(Boolean).join(' · ')
    );
    const shown = chips(device, sample).filter(chip => chip.kind === 'warn');
    this.chipList.update(shown);
    setHidden(this.chips, shown.length === 0);
    this.busy.update('Busy', isAsleep ? 'asleep' : percent(busy), busy === null ? null : busy / 100);
    this.memory.update(
      memoryName(device),
      isAsleep ? 'asleep' : bytesOf(memory.used, memory.total),
      isAsleep ? null : share
    );
    this.userList.update(users);
    setHidden(this.users, users.length === 0);
    setHidden(this.free, users.length > 0 || !isGpu(device) || this.store.leases === null);
  }
}

/** It looks while it is active, through the same connection as the panel. */
export class Compact {
  readonly node: HTMLElement;
  private readonly simulated = make('span', { class: 'rocmlab-Chip rocmlab-mod-warn' }, 'SIMULATED');
  private readonly status = make('p', { class: 'rocmlab-Compact-status', role: 'status' });
  private readonly devices: List<Item>;
  private readonly waiting: HTMLElement;
  private readonly waiters: List<Holder>;
  private readonly news = make('p', { class: 'rocmlab-Compact-news' });
  private unwatch: (() => void) | null = null;

  constructor(
    private readonly store: Store,
    open: () => void
  ) {
    const devices = make('div', { class: 'rocmlab-Compact-devices' });
    const waiters = make('ul', { class: 'rocmlab-Compact-users' });
    this.waiting = make('section', {}, make('h3', {}, 'Waiting for a GPU'), waiters);
    this.node = make(
      'div',
      { class: 'rocmlab-Panel rocmlab-Compact' },
      make('div', { class: 'rocmlab-Compact-head' }, make('h2', {}, 'GPUs'), this.simulated),
      this.status,
      devices,
      this.waiting,
      this.news,
      button('Open the GPU panel', open)
    );
    this.devices = new List(
      devices,
      ({ device }) => device.id,
      item => new DeviceView(store, item)
    );
    this.waiters = listOf(store, waiters);
    this.update();
  }

  setActive(active: boolean): void {
    if (active && this.unwatch === null) {
      this.unwatch = this.store.watch(() => this.update());
      this.update();
    } else if (!active) {
      this.unwatch?.();
      this.unwatch = null;
    }
  }

  dispose(): void {
    this.setActive(false);
  }

  private update(): void {
    const { store } = this;
    const isOld = store.status === 'lost' || store.status === 'refused';
    setText(this.status, isOld || !store.isLoaded ? STATUS[store.status] : '');
    setHidden(this.status, this.status.textContent === '');
    this.node.classList.toggle('rocmlab-mod-old', isOld);
    setHidden(this.simulated, !store.simulated);
    const gpus = store.devices.filter(isGpu);
    const all = holders(store);
    this.devices.update(
      (gpus.length > 0 ? gpus : store.devices).map(device => ({
        device,
        holders: all.filter(each => each.devices.includes(device.id))
      }))
    );
    const waiting = all.filter(each => each.kernel?.queue);
    this.waiters.update(waiting);
    setHidden(this.waiting, waiting.length === 0);
    const news = [
      store.problems.length === 0 ? '' : count(store.problems.length, 'problem'),
      store.idle.length === 0 ? '' : `${count(store.idle.length, 'idle kernel')} with GPU memory`
    ];
    setText(this.news, news.filter(Boolean).join(', '));
    setHidden(this.news, this.news.textContent === '');
  }
}
