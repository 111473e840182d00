/** What a kernel does, in words: works, is idle, starts, or waits in the queue for a GPU. */

import type { Holder } from './holders';
import type { Queue } from './model';
import type { Store } from './store';
import { duration, ordinal, plain, UNKNOWN } from './units';

/** Return `waits for a GPU, 2nd of 3`; without the place as long as that is not known. */
export function waitText({ gpus, place, length }: Queue): string {
  const what = gpus === 1 ? 'waits for a GPU' : `waits for ${gpus} GPUs`;
  return place === null || length === null ? what : `${what}, ${ordinal(place)} of ${length}`;
}

/** Return what a row's kernel does. */
export function stateText(store: Store, { kernel, processes }: Holder): string {
  const owner = processes[0]?.owner ?? null;
  const state = kernel?.state ?? owner?.kernel_state ?? null;
  if (kernel?.queue) {
    return waitText(kernel.queue);
  }
  if (state === null) {
    return UNKNOWN;
  }
  const starting = store.secondsSince(kernel?.starting_since_seconds ?? null);
  if (state === 'starting' && starting !== null) {
    return `starting for ${duration(starting)}`;
  }
  const idle = kernel ? store.secondsSince(kernel.idle_since_seconds) : (owner?.idle_seconds ?? null);
  return state === 'idle' && idle !== null ? `idle for ${duration(idle)}` : plain(state);
}

/** Return what more there is to know of that state; empty where it explains itself. */
export function stateTitle({ kernel }: Holder): string {
  if (kernel?.queue) {
    return 'It has no GPU yet: when its turn comes, the server restarts it with one.';
  }
  return kernel?.state === 'starting'
    ? 'A kernel counts as starting until a page or another client has used it: it may be ready.'
    : '';
}
