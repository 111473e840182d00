/** In the status bar: what the GPUs of the current notebook's or console's kernel do. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import { Signal, type ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { button, setAttribute, setText } from '../dom';
import { deviceNames } from '../holders';
import { memoryName, memoryOf, shortName, type Device, type GpuProcess } from '../model';
import { waitText } from '../states';
import type { Store } from '../store';
import { bytes, bytesOf, percent, plain } from '../units';

/** Return the session of a notebook, a console, or whatever else has a kernel. */
function sessionOf(widget: Widget | null): ISessionContext | null {
  const found = widget as { sessionContext?: ISessionContext } | null;
  return found?.sessionContext?.statusChanged === undefined ? null : found.sessionContext;
}

function mean(values: (number | null | undefined)[]): number | null {
  const known = values.filter(value => value !== null && value !== undefined);
  return known.length > 0 ? known.reduce((one, other) => one + other, 0) / known.length : null;
}

export class StatusItem extends Widget {
  private readonly button: HTMLButtonElement;
  private readonly changed = new Signal<this, void>(this);
  private widget: Widget | null = null;
  private session: ISessionContext | null = null;
  private kernel: string | null = null;
  private unwatch: (() => void) | null = null;
  private isOn = true;

  constructor(
    app: JupyterFrontEnd,
    private readonly store: Store,
    open: () => void
  ) {
    super();
    this.addClass('rocmlab-StatusItem');
    this.button = button('', open, { class: 'rocmlab-StatusItem-button' });
    this.node.append(this.button);
    const shell = app.shell;
    shell.currentChanged?.connect(() => this.follow(shell.currentWidget));
    void app.restored.then(() => this.follow(shell.currentWidget));
  }

  get isShown(): boolean {
    return this.isOn && this.button.textContent !== '';
  }

  get stateChanged(): ISignal<this, void> {
    return this.changed;
  }

  /** Show it, or never. */
  switch(isOn: boolean): void {
    this.isOn = isOn;
    this.look();
  }

  override dispose(): void {
    this.unwatch?.();
    this.unwatch = null;
    super.dispose();
  }

  /** Another widget has become the current one; the panel, the launcher and text files leave the notebook as it is. */
  private follow(widget: Widget | null): void {
    const session = sessionOf(widget);
    if (session === null || session === this.session) {
      return;
    }
    this.session?.statusChanged.disconnect(this.onStatus);
    this.widget?.disposed.disconnect(this.onClosed);
    this.widget = widget;
    this.session = session;
    session.statusChanged.connect(this.onStatus);
    widget?.disposed.connect(this.onClosed);
    this.onStatus();
  }

  private readonly onClosed = (): void => {
    this.widget = null;
    this.session = null;
    this.kernel = null;
    this.look();
  };

  private readonly onStatus = (): void => {
    const kernel = this.session?.session?.kernel?.id ?? null;
    if (kernel !== this.kernel || (kernel !== null && this.store.kernel(kernel) === undefined)) {
      this.kernel = kernel;
      this.store.loadKernels().then(
        () => this.look(),
        () => this.look() // no server: JupyterLab reports it
      );
    }
  };

  /** Open the stream while there is something to show. */
  private look(): void {
    const kernel = this.isOn ? this.store.kernel(this.kernel) : undefined;
    const hasGpu = kernel?.devices.some(id => id !== 'cpu') === true;
    const wanted = hasGpu || kernel?.queue != null;
    if (wanted && this.unwatch === null) {
      this.unwatch = this.store.watch(change => (change === 'state' ? this.look() : this.render()));
    } else if (!wanted && this.unwatch !== null) {
      this.unwatch();
      this.unwatch = null;
    }
    this.render();
  }

  private render(): void {
    const before = this.isShown;
    const kernel = this.isOn ? this.store.kernel(this.kernel) : undefined;
    if (kernel === undefined) {
      this.say('', '', '');
    } else if (kernel.queue) {
      const text = waitText(kernel.queue);
      this.say(
        text,
        'The server restarts this kernel when it gets one',
        `This kernel ${text}. Open the GPU panel`
      );
    } else if (kernel.is_gpu_shared === true) {
      this.say(
        'GPU (shared)',
        'every program of this machine may use its GPU: there is no lease, and no figures',
        'GPU, shared with every program of this machine. Open the GPU panel'
      );
    } else if (this.unwatch === null) {
      this.say(
        'CPU',
        'this kernel has no lease of a GPU',
        'CPU: this kernel has no lease of a GPU. Open the GPU panel'
      );
    } else {
      const devices = this.store.devices.filter(device => kernel.devices.includes(device.id));
      if (devices.length > 0) {
        this.sayDevices(devices, kernel.kernel_id);
      }
    }
    if (before !== this.isShown) {
      this.changed.emit();
    }
  }

  private sayDevices(devices: Device[], kernel: string): void {
    const { samples, simulated, status } = this.store;
    const name = deviceNames(
      devices.map(device => device.id),
      devices
    );
    const memory = devices.map(device => memoryOf(device, samples[device.id]));
    const all = <K extends 'used' | 'total'>(which: K): number | null =>
      memory.some(each => each[which] === null)
        ? null
        : memory.reduce((sum, each) => sum + (each[which] ?? 0), 0);
    const isAsleep = devices.every(device => samples[device.id]?.is_asleep === true);
    const busy = percent(mean(devices.map(device => samples[device.id]?.busy_percent)));
    const numbers = isAsleep
      ? 'asleep'
      : `${busy}  ${bytesOf(all('used'), all('total')).replace(' of ', '/')}`;
    const isLost = status === 'lost' || status === 'refused';
    const [first] = devices;
    const word = first === undefined ? 'VRAM' : memoryName(first);
    const spoken = isAsleep ? 'asleep' : `busy ${busy}, ${word} ${bytesOf(all('used'), all('total'))}`;
    this.button.classList.toggle('rocmlab-mod-old', isLost);
    this.say(
      `${name}  ${isLost ? 'no connection' : numbers}`,
      [
        ...(simulated ? ['SIMULATED'] : []),
        ...devices.map(device => this.describe(device, kernel)),
        'Click for the GPU panel'
      ].join('\n'),
      `${name}: ${isLost ? 'no connection' : spoken}${simulated ? ', simulated' : ''}. Open the GPU panel`
    );
  }

  /** Return one device and who is on it, for the tooltip. */
  private describe(device: Device, kernel: string): string {
    const here = (this.store.processes ?? []).filter(each => each.device === device.id);
    const line = (each: GpuProcess): string => {
      const who =
        each.owner?.kernel_id === kernel
          ? 'this kernel'
          : plain(each.owner?.notebook ?? each.name ?? 'a process');
      return `    ${who}, PID ${each.pid}: ${bytes(each.vram_bytes)}`;
    };
    return [
      `${shortName(device, device.id)}: ${plain(device.name)}, ${device.pci_address ?? device.id}`,
      ...here.map(line)
    ].join('\n');
  }

  private say(text: string, title: string, label: string): void {
    setText(this.button, text);
    setAttribute(this.button, 'title', title || null);
    setAttribute(this.button, 'aria-label', label || null);
  }
}
