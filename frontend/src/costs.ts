/** What notebooks cost: GPU time, energy and, where the lab has prices, money. Unknown is `–`, a part of it `≥`. */

import type { Cost } from './model';
import { clock, count, duration, energy } from './units';

function money(amount: number, currency: string, isWhole: boolean): string {
  const text = amount >= 0.1 || amount === 0 ? amount.toFixed(2) : amount.toPrecision(2);
  return `${isWhole ? '≈' : '≥'}\u00a0${text}\u00a0${currency}`;
}

/** Return `12 min of GPU time, 41.2 Wh, ≈ 0.36 EUR`. */
export function costText(cost: Cost): string {
  const joules = (cost.energy_joules === null || cost.is_whole ? '' : '≥ ') + energy(cost.energy_joules);
  const parts = [`${duration(cost.gpu_seconds)} of GPU time`, joules];
  if (cost.amount !== null && cost.currency !== null) {
    parts.push(money(cost.amount, cost.currency, cost.is_amount_whole === true));
  }
  return parts.join(', ');
}

/** Return what the numbers of a notebook are. */
export function costTitle(cost: Cost | undefined): string {
  if (cost === undefined) {
    return '';
  }
  const lines = [
    `GPU time and energy of its leases since ${clock(cost.since_seconds)}, idle draw included, until the lab is restarted`
  ];
  if (cost.energy_joules !== null && !cost.is_whole) {
    lines.push('of a part of that time the energy is not known');
  }
  if (cost.is_shared) {
    lines.push('other processes were on its GPU: their energy is in it');
  }
  return lines.join('\n');
}

/** Return what all notebooks of this lab cost; empty where none had a GPU. */
export function totalText(costs: Cost[]): string {
  const [first, ...others] = costs;
  if (first === undefined) {
    return '';
  }
  const total = others.reduce<Cost>(
    (one, other) => ({
      ...one,
      since_seconds: Math.min(one.since_seconds, other.since_seconds),
      gpu_seconds: one.gpu_seconds + other.gpu_seconds,
      energy_joules: added(one.energy_joules, other.energy_joules),
      is_whole: one.is_whole && other.is_whole,
      amount: added(one.amount, other.amount),
      currency: one.currency ?? other.currency,
      is_amount_whole: one.is_amount_whole === true && other.is_amount_whole === true
    }),
    first
  );
  const notebooks = `${count(costs.length, 'notebook')} of this lab with a lease`;
  return `Since ${clock(total.since_seconds)}, ${notebooks}: ${costText(total)}`;
}

function added(one: number | null, other: number | null): number | null {
  return one === null ? other : other === null ? one : one + other;
}
