/** What an administrator of JupyterHub tells all users, as notifications that stay until they are closed. */

import { Notification } from '@jupyterlab/apputils';

import type { LabHost } from './host';

interface Notice {
  key: string;
  text: string;
}

const EVERY_MS = 60_000;

/** Look each minute while the page can be seen. A notice is shown once, and is closed when it is withdrawn. */
export class HubNotices {
  private readonly shown = new Map<string, string>(); // the notification of each notice

  constructor(private readonly host: LabHost) {
    const look = (): void => {
      if (!document.hidden) {
        void this.look();
      }
    };
    window.setInterval(look, EVERY_MS);
    document.addEventListener('visibilitychange', look);
    look();
  }

  private async look(): Promise<void> {
    let notices: Notice[];
    try {
      const answer = await this.host.request('api/notices');
      if (!answer.ok) {
        return;
      }
      ({ notices } = (await answer.json()) as { notices: Notice[] });
    } catch {
      return; // no server: JupyterLab reports it
    }
    for (const { key, text } of notices) {
      if (!this.shown.has(key)) {
        this.shown.set(key, Notification.warning(`Administrator: ${text}`, { autoClose: false }));
      }
    }
    for (const [key, id] of this.shown) {
      if (!notices.some(notice => notice.key === key)) {
        Notification.dismiss(id);
        this.shown.delete(key);
      }
    }
  }
}
