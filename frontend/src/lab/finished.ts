/** A notification of the browser when a cell that ran for long ends while nobody sees its page. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification as Toast } from '@jupyterlab/apputils';
import type { Cell, CodeCell } from '@jupyterlab/cells';
import { NotebookActions, type INotebookTracker, type Notebook } from '@jupyterlab/notebook';
import type { ISettingRegistry } from '@jupyterlab/settingregistry';

import { duration } from '../units';

/** Measures cells that were run from this page. Queued ones begin when the one before them in their notebook ends. */
export class FinishedCells {
  private afterSeconds = 0; // 0: never
  private readonly scheduled = new WeakMap<Cell, number>();
  private readonly ended = new WeakMap<Notebook, number>();

  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly notebooks: INotebookTracker,
    settings: ISettingRegistry.ISettings
  ) {
    this.afterSeconds = secondsOf(settings);
    settings.changed.connect(() => {
      const wasOff = this.afterSeconds === 0;
      this.afterSeconds = secondsOf(settings);
      if (wasOff && this.afterSeconds > 0) offer();
    });
    NotebookActions.executionScheduled.connect((_, { cell }) => this.scheduled.set(cell, performance.now()));
    NotebookActions.executed.connect((_, { notebook, cell, success }) =>
      this.finished(notebook, cell, success)
    );
  }

  private finished(notebook: Notebook, cell: Cell, success: boolean): void {
    const now = performance.now();
    const begun = Math.max(this.scheduled.get(cell) ?? now, this.ended.get(notebook) ?? 0);
    this.ended.set(notebook, now);
    const seconds = (now - begun) / 1000;
    if (cell.model.type !== 'code' || this.afterSeconds === 0 || seconds < this.afterSeconds) return;
    if (!document.hidden || !('Notification' in window) || Notification.permission !== 'granted') return;
    const panel = this.notebooks.find(each => each.content === notebook);
    if (panel === undefined) return;
    const count = (cell as CodeCell).model.executionCount;
    const what = `Cell ${count === null ? '' : `[${count}] `}${success ? 'finished' : 'failed'}`;
    const shown = new Notification(panel.context.path, {
      body: `${what} after ${duration(seconds)}`,
      tag: `rocmlab:${panel.context.path}` // replaces the one before
    });
    shown.onclick = () => {
      window.focus();
      this.app.shell.activateById(panel.id);
      shown.close();
    };
  }
}

function secondsOf(settings: ISettingRegistry.ISettings): number {
  return Number(settings.composite['afterSeconds']) || 0;
}

/** Ask for the permission by a button: browsers ignore a request that no click has caused. */
function offer(): void {
  if (!('Notification' in window) || !window.isSecureContext) {
    Toast.warning('This browser shows notifications only for pages from https:// or from this computer.');
  } else if (Notification.permission === 'denied') {
    Toast.warning(
      'Notifications of this page are blocked: allow them in the browser’s settings of this page.'
    );
  } else if (Notification.permission === 'default') {
    Toast.info('The browser asks once whether this page may show notifications.', {
      autoClose: false,
      actions: [
        {
          label: 'Allow notifications',
          displayType: 'accent',
          callback: () => void Notification.requestPermission()
        }
      ]
    });
  }
}
