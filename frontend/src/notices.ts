/** What a person should do something about: problems with their fixes, and idle kernels that hold memory. */

import { copy, button, make, setAttribute, setHidden, setText, type View } from './dom';
import { deviceNames } from './holders';
import type { IdleHolder, Problem } from './model';
import type { Store } from './store';
import { bytes, duration, plain } from './units';

export class ProblemView implements View<Problem> {
  readonly node: HTMLElement;
  private fix: string;
  private readonly code: HTMLElement;

  constructor(problem: Problem, say: (text: string) => void) {
    this.fix = problem.fix;
    this.code = make('code');
    const copyFix = async (): Promise<void> => {
      const done = await copy(this.fix);
      setText(copied, done ? 'Copied' : 'Not allowed');
      say(done ? 'The fix was copied.' : 'The browser does not allow copying.');
      window.setTimeout(() => setText(copied, 'Copy'), 2000);
    };
    const copied = button('Copy', () => void copyFix(), {
      'aria-label': `Copy the fix: ${plain(problem.fix)}`
    });
    const fix = make('div', { class: 'rocmlab-Problem-fix' }, this.code, copied);
    const why = make('p', { class: 'rocmlab-Problem-why' }, problem.why);
    const what = make('p', { class: 'rocmlab-Problem-what' }, problem.what);
    const kind = problem.status === 'warns' ? 'warn' : 'block';
    this.node = make(
      'li',
      { class: `rocmlab-Problem rocmlab-mod-${kind}` },
      what,
      ...(problem.why ? [why] : []),
      fix
    );
    setHidden(fix, problem.fix === '');
  }

  update(problem: Problem): void {
    this.fix = problem.fix;
    setText(this.code, problem.fix);
  }
}

export class IdleView implements View<IdleHolder> {
  readonly node: HTMLElement;
  private holder: IdleHolder;
  private readonly text = make('p');
  private readonly free: HTMLButtonElement;

  constructor(
    private readonly store: Store,
    holder: IdleHolder,
    shutDown: (holder: IdleHolder) => void
  ) {
    this.holder = holder;
    this.free = button('', () => shutDown(this.holder));
    this.node = make('li', { class: 'rocmlab-Idle' }, this.text, this.free);
  }

  update(holder: IdleHolder): void {
    this.holder = holder;
    const name = idleName(holder);
    const idle = duration(this.store.secondsSince(holder.idle_since_seconds));
    const devices = deviceNames(holder.devices, this.store.devices);
    const much = `${holder.is_estimated ? 'about ' : ''}${bytes(holder.vram_bytes)}`;
    const what = holder.vram_bytes === null ? devices : `${much} of ${devices}`;
    const isStarting = this.store.kernel(holder.kernel_id)?.state === 'starting'; // no client has used it
    setText(this.text, `${name} has been ${isStarting ? 'starting' : 'idle'} for ${idle} and holds ${what}.`);
    setText(this.free, `Shut down to free ${holder.vram_bytes === null ? devices : much}`);
    setAttribute(
      this.free,
      'aria-label',
      `Shut down ${name} to free ${holder.vram_bytes === null ? devices : much}`
    );
  }
}

export function idleName(holder: IdleHolder): string {
  return plain(holder.notebook ?? holder.kernel_name ?? 'A kernel');
}
