/** The notebooks and processes on the GPUs, and what can be done with their kernels. */

import { costText, costTitle, totalText } from './costs';
import { button, List, make, setAttribute, setHidden, setText, type View } from './dom';
import { HolderName } from './holdername';
import { deviceNames, memoryText, type Holder } from './holders';
import { stateText, stateTitle } from './states';
import type { Store } from './store';
import { percent, plain, UNKNOWN } from './units';

export type Action = 'interrupt' | 'restart' | 'shutdown';
export type Act = (action: Action, holder: Holder) => void;

const HEADERS = [
  'Notebook or program',
  'Device',
  'GPU memory',
  'Compute units',
  'State',
  'Processes',
  'Actions'
];
const STATE = HEADERS.indexOf('State') - 1;
const LABELS: [Action, string][] = [
  ['interrupt', 'Interrupt'],
  ['restart', 'Restart'],
  ['shutdown', 'Shut down']
];

function unitsOf(holder: Holder): string {
  const known = holder.processes.flatMap(each =>
    each.compute_units_percent === null ? [] : [each.compute_units_percent]
  );
  return percent(known.length > 0 ? Math.max(...known) : null);
}

function processesOf(holder: Holder): string {
  const [first] = holder.processes;
  if (first === undefined) {
    return holder.kernel?.pid ? `PID ${holder.kernel.pid}` : UNKNOWN;
  }
  const pids = [...new Set(holder.processes.map(each => each.pid))];
  return pids.length === 1 ? `PID ${first.pid}` : `${pids.length}, first PID ${first.pid}`;
}

class Row implements View<Holder> {
  readonly node: HTMLElement;
  private holder: Holder;
  private readonly name: HTMLElement;
  private readonly who: HolderName;
  private readonly detail = make('span', { class: 'rocmlab-Row-detail' });
  private readonly costs = make('span', { class: 'rocmlab-Row-costs' });
  private readonly estimated = make(
    'span',
    {
      class: 'rocmlab-Chip rocmlab-mod-quiet',
      title: 'inferred: inside this container the processes of the GPU cannot be distinguished'
    },
    'estimated'
  );
  private readonly cells = HEADERS.slice(1, -1).map(header =>
    make('td', { role: 'cell', 'data-label': header })
  );
  private readonly actions = make('td', { role: 'cell', class: 'rocmlab-Row-actions' });
  private readonly buttons: [string, HTMLButtonElement][];
  private isPending = '';

  constructor(
    private readonly store: Store,
    holder: Holder,
    act: Act
  ) {
    this.holder = holder;
    this.who = new HolderName(store);
    const names = make('span', { class: 'rocmlab-Row-name' }, this.who.link, this.who.text, this.estimated);
    this.name = make('th', { scope: 'row', role: 'rowheader' }, names, this.detail, this.costs);
    this.buttons = LABELS.map(([action, label]) => [
      label,
      button(label, () => this.isPending || act(action, this.holder), { 'data-action': action })
    ]);
    this.actions.append(...this.buttons.map(([, each]) => each));
    this.node = make('tr', { role: 'row' }, this.name, ...this.cells, this.actions);
  }

  /** Say what is being done; empty when it is done. */
  pending(what: string): void {
    this.isPending = what;
    this.node.classList.toggle('rocmlab-mod-pending', what !== '');
    for (const [, each] of this.buttons) {
      setAttribute(each, 'aria-disabled', what === '' ? null : 'true');
    }
    this.update(this.holder);
  }

  update(holder: Holder): void {
    this.holder = holder;
    this.who.update(holder);
    setText(this.detail, holder.detail);
    setHidden(this.estimated, !holder.isEstimated);
    const cost = this.store.costs.find(each => each.kernel_ids.includes(holder.kernel?.kernel_id ?? ''));
    const texts = [
      deviceNames(holder.devices, this.store.devices) || UNKNOWN,
      memoryText(holder),
      unitsOf(holder),
      this.isPending || stateText(this.store, holder),
      processesOf(holder)
    ];
    this.cells.forEach((cell, index) => setText(cell, texts[index] ?? UNKNOWN));
    const state = this.cells[STATE];
    if (state !== undefined) {
      setAttribute(state, 'title', stateTitle(holder) || null);
    }
    const shared = cost?.is_shared === true ? ' (shared)' : '';
    setText(this.costs, cost === undefined ? '' : costText(cost) + shared);
    setAttribute(this.costs, 'title', costTitle(cost) || null);
    setHidden(this.costs, cost === undefined);
    const title = holder.processes
      .map(each => plain(`${each.pid} ${each.user ?? ''} ${each.command ?? each.name ?? ''}`))
      .join('\n');
    setAttribute(this.name, 'title', title || null);
    for (const [label, each] of this.buttons) {
      const runsNothing = label === 'Interrupt' && holder.kernel?.queue != null;
      setHidden(each, holder.kernel === null || runsNothing);
      setAttribute(each, 'aria-label', `${label} ${holder.name}`);
    }
  }
}

export class HoldersTable {
  readonly node: HTMLElement;
  private readonly heading = make('h2', { tabindex: '-1' }, 'Notebooks and processes');
  private readonly none = make('p', { class: 'rocmlab-None' }, 'No process and no lease on any GPU.');
  private readonly total = make('p', { class: 'rocmlab-None rocmlab-Total' });
  private readonly table: HTMLElement;
  private readonly rows: List<Holder>;

  constructor(
    private readonly store: Store,
    act: Act
  ) {
    const body = make('tbody', { role: 'rowgroup' });
    const headers = HEADERS.map(header => make('th', { scope: 'col', role: 'columnheader' }, header));
    const head = make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, ...headers));
    // The roles are those that the elements have; in a narrow panel their `display` changes, which would take them away.
    this.table = make(
      'table',
      { class: 'rocmlab-Table', role: 'table', 'aria-label': 'Notebooks and processes' },
      head,
      body
    );
    this.node = make(
      'section',
      { class: 'rocmlab-Section' },
      this.heading,
      this.none,
      this.table,
      this.total
    );
    this.rows = new List(
      body,
      holder => holder.key,
      holder => new Row(store, holder, act)
    );
  }

  update(holders: Holder[]): void {
    const focused = document.activeElement;
    const hadFocus = this.table.contains(focused);
    setHidden(this.none, holders.length > 0);
    setHidden(this.table, holders.length === 0);
    setText(this.total, totalText(this.store.costs));
    setHidden(this.total, this.store.costs.length === 0);
    this.rows.update(holders);
    if (hadFocus && !this.node.contains(document.activeElement)) {
      this.heading.focus({ preventScroll: true }); // the row that had it is gone
    }
  }

  pending(key: string, what: string): void {
    (this.rows.get(key) as Row | undefined)?.pending(what);
  }
}
