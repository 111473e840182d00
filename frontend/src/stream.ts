/** The server's events, opened again whenever they end. */

import type { Host } from './host';
import type { Snapshot, State } from './model';

export type Status = 'closed' | 'connecting' | 'live' | 'lost' | 'refused';

const FIRST_PAUSE_SECONDS = 0.5;
const MOST_PAUSE_SECONDS = 10;
const SILENCE_SECONDS = 45; // a server that samples seldom, because all cards sleep, still says something

export interface Receiver {
  /** The connection was opened, or opened again: what was known may be old. Throws if the server does not answer. */
  onOpen(): Promise<void>;
  onSnapshot(snapshot: Snapshot): void;
  onState(state: State): void;
  onStatus(status: Status): void;
}

export class Stream {
  private source: EventSource | null = null;
  private retry = 0; // timers
  private watchdog = 0;
  private pause = FIRST_PAUSE_SECONDS;
  private attempt = 0; // an answer to an earlier one is not listened to

  constructor(
    private readonly host: Host,
    private readonly receiver: Receiver
  ) {
    window.addEventListener('online', () => this.hurry());
  }

  open(): void {
    if (this.source === null && this.retry === 0) {
      this.receiver.onStatus('connecting');
      this.connect();
    }
  }

  close(): void {
    this.stop();
    this.pause = FIRST_PAUSE_SECONDS;
    this.receiver.onStatus('closed');
  }

  private connect(): void {
    this.retry = 0;
    const attempt = ++this.attempt;
    const source = new EventSource(this.host.address('api/stream'));
    this.source = source;
    source.addEventListener('open', () => {
      this.heard();
      this.receiver.onOpen().catch(() => {
        if (attempt === this.attempt) {
          this.lost();
        }
      });
    });
    source.addEventListener('snapshot', event => {
      this.heard();
      this.pause = FIRST_PAUSE_SECONDS;
      this.receiver.onStatus('live');
      this.receiver.onSnapshot(JSON.parse(event.data as string) as Snapshot);
    });
    source.addEventListener('state', event => {
      this.heard();
      this.receiver.onState(JSON.parse(event.data as string) as State);
    });
    source.addEventListener('error', () => this.lost());
  }

  private heard(): void {
    window.clearTimeout(this.watchdog);
    this.watchdog = window.setTimeout(() => this.lost(), SILENCE_SECONDS * 1000);
  }

  private lost(): void {
    this.stop();
    // A stream that has ended is opened again at once; only if that fails there is something to say.
    this.receiver.onStatus(this.pause > FIRST_PAUSE_SECONDS ? 'lost' : 'connecting');
    this.retry = window.setTimeout(() => this.connect(), this.pause * 1000);
    this.pause = Math.min(this.pause * 2, MOST_PAUSE_SECONDS);
    if (this.pause > 2 * FIRST_PAUSE_SECONDS) {
      void this.ask(this.attempt);
    }
  }

  /** Find out whether the server is gone or only does not know us any more: an event source does not say. */
  private async ask(attempt: number): Promise<void> {
    try {
      const response = await this.host.request('api/devices');
      if (
        attempt === this.attempt &&
        (response.status === 401 || response.status === 403 || response.redirected)
      ) {
        this.receiver.onStatus('refused');
      }
    } catch {
      // gone
    }
  }

  private hurry(): void {
    if (this.retry !== 0) {
      window.clearTimeout(this.retry);
      this.pause = FIRST_PAUSE_SECONDS;
      this.connect();
    }
  }

  private stop(): void {
    this.attempt += 1;
    window.clearTimeout(this.retry);
    window.clearTimeout(this.watchdog);
    this.retry = 0;
    this.source?.close();
    this.source = null;
  }
}
