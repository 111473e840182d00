/** JupyterLab as the panel sees it: its connection settings, dialogs and documents. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { withXsrf, type Host, type Question } from '../host';

export class LabHost implements Host {
  private readonly settings: ServerConnection.ISettings;

  constructor(private readonly app: JupyterFrontEnd) {
    this.settings = app.serviceManager.serverSettings;
  }

  address(path: string): string {
    const url = new URL(URLExt.join(this.settings.baseUrl, 'rocmlab', path), window.location.href);
    if (this.settings.appendToken && this.settings.token !== '') {
      url.searchParams.set('token', this.settings.token);
    }
    return withXsrf(url);
  }

  request(path: string, method: 'GET' | 'POST' = 'GET'): Promise<Response> {
    const url = URLExt.join(this.settings.baseUrl, 'rocmlab', path);
    return ServerConnection.makeRequest(url, { method, cache: 'no-store' }, this.settings);
  }

  async confirm(question: Question): Promise<boolean> {
    const result = await showDialog({
      title: question.title,
      body: question.text,
      buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: question.action })],
      defaultButton: 0
    });
    return result.button.accept;
  }

  openNotebook(path: string): void {
    void this.app.commands.execute('docmanager:open', { path });
  }
}
