/** Numbers as people read them. What is unknown is `–`, never 0. */

export const UNKNOWN = '–';
const NBSP = '\u00a0';
const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

type Value = number | null | undefined;

function known(value: Value): value is number {
  return value !== null && value !== undefined && Number.isFinite(value);
}

export function withUnit(value: Value, unit: string, digits = 0): string {
  return known(value) ? `${value.toFixed(digits)}${NBSP}${unit}` : UNKNOWN;
}

export function percent(value: Value): string {
  return withUnit(value, '%');
}

export function watts(value: Value): string {
  return withUnit(value, 'W');
}

export function celsius(value: Value): string {
  return withUnit(value, '°C');
}

export function hertz(value: Value): string {
  return known(value) && value >= 1e9
    ? withUnit(value / 1e9, 'GHz', 2)
    : withUnit(known(value) ? value / 1e6 : null, 'MHz');
}

function byteUnit(value: number): number {
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit;
}

function inUnit(value: number, unit: number): string {
  return (value / 1024 ** unit).toFixed(unit >= 3 ? 1 : 0);
}

export function bytes(value: Value): string {
  if (!known(value)) {
    return UNKNOWN;
  }
  const unit = byteUnit(value);
  return `${inUnit(value, unit)}${NBSP}${BYTE_UNITS[unit] ?? ''}`;
}

/** `18.2 of 24.0 GiB`: both in the unit of the total. */
export function bytesOf(used: Value, total: Value): string {
  if (!known(total)) {
    return bytes(used);
  }
  const unit = byteUnit(total);
  const first = known(used) ? inUnit(used, unit) : UNKNOWN;
  return `${first} of ${inUnit(total, unit)}${NBSP}${BYTE_UNITS[unit] ?? ''}`;
}

/** `289 of 355 W`, or without a cap `289 W`. */
export function wattsOf(value: Value, cap: Value): string {
  return known(cap) ? `${known(value) ? value.toFixed(0) : UNKNOWN} of ${watts(cap)}` : watts(value);
}

/** `45 s`, `12 min`, `3 h 05 min`. */
export function duration(seconds: Value): string {
  if (!known(seconds)) {
    return UNKNOWN;
  }
  if (seconds < 60) {
    return withUnit(Math.max(0, Math.floor(seconds)), 's');
  }
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return withUnit(minutes, 'min');
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 48) {
    return `${hours}${NBSP}h${NBSP}${String(minutes % 60).padStart(2, '0')}${NBSP}min`;
  }
  return withUnit(Math.floor(hours / 24), 'days');
}

/** `830 J`, `41.2 Wh`, `2.66 kWh`. */
export function energy(joules: Value): string {
  if (!known(joules)) {
    return UNKNOWN;
  }
  if (joules >= 3.6e6) {
    return withUnit(joules / 3.6e6, 'kWh', 2);
  }
  return joules >= 3600 ? withUnit(joules / 3600, 'Wh', 1) : withUnit(joules, 'J');
}

/** `14:03` of a Unix time or an ISO 8601 text; with the day, `2026-11-20 14:03`, unless it is today. */
export function clock(when: number | string | null): string {
  const date = typeof when === 'number' ? new Date(when * 1000) : new Date(when ?? NaN);
  if (Number.isNaN(date.getTime())) {
    return UNKNOWN;
  }
  const two = (number: number): string => String(number).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return date.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
}

export function count(number: number, word: string): string {
  return `${number} ${word}${number === 1 ? '' : 's'}`;
}

/** `1st`, `2nd`, `3rd`, `11th`. */
export function ordinal(number: number): string {
  const isTeen = Math.floor(number / 10) % 10 === 1;
  return `${number}${(isTeen ? undefined : ['th', 'st', 'nd', 'rd'][number % 10]) ?? 'th'}`;
}

/** A name that others chose, without letters that would turn the text around or break the line; at most 200 of them. */
export function plain(text: string): string {
  const shown = text
    .slice(0, 400)
    .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');
  return shown.length > 200 ? `${shown.slice(0, 199)}…` : shown;
}
