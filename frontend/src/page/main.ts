/** The page of its own at `rocmlab/`: the panel without JupyterLab. */

import { withXsrf, xsrf, type Host, type Question } from '../host';
import { button, make } from '../dom';
import { Panel } from '../panel';
import { Store } from '../store';

/** What the server wrote into the page. */
function configured(name: string): string {
  const text = document.getElementById('jupyter-config-data')?.textContent ?? '{}';
  const value = (JSON.parse(text) as Record<string, unknown>)[name];
  return typeof value === 'string' ? value : '';
}

class Page implements Host {
  private readonly base = new URL('.', document.baseURI); // ends with rocmlab/
  private readonly asked: string | null; // the token in the address: there may be no cookies
  private readonly token: string;

  constructor() {
    const address = new URL(window.location.href);
    this.asked = address.searchParams.get('token');
    this.token = configured('token') || (this.asked ?? '');
    if (this.asked !== null) {
      // It should not be in a bookmark or a screenshot.
      address.searchParams.delete('token');
      window.history.replaceState(null, '', address);
    }
  }

  address(path: string): string {
    const url = new URL(path, this.base);
    if (this.asked !== null) {
      url.searchParams.set('token', this.asked);
    }
    return withXsrf(url);
  }

  request(path: string, method: 'GET' | 'POST' = 'GET'): Promise<Response> {
    const headers: Record<string, string> = { Accept: 'application/json' };
    if (this.token !== '') {
      headers['Authorization'] = `token ${this.token}`;
    }
    const cookie = xsrf();
    if (cookie !== '') {
      headers['X-XSRFToken'] = cookie;
    }
    return fetch(new URL(path, this.base), { method, headers, cache: 'no-store' });
  }

  confirm(question: Question): Promise<boolean> {
    return new Promise(resolve => {
      const cancel = button('Cancel', () => dialog.close(), { autofocus: '' });
      const accept = button(question.action, () => dialog.close('yes'), {
        class: 'rocmlab-Button rocmlab-mod-warn'
      });
      const dialog = make(
        'dialog',
        {
          class: 'rocmlab-Dialog',
          'aria-labelledby': 'rocmlab-question',
          'aria-describedby': 'rocmlab-answer'
        },
        make('h2', { id: 'rocmlab-question' }, question.title),
        make('p', { id: 'rocmlab-answer' }, question.text),
        make('div', { class: 'rocmlab-Dialog-buttons' }, cancel, accept)
      );
      dialog.addEventListener('close', () => {
        dialog.remove();
        resolve(dialog.returnValue === 'yes');
      });
      document.body.append(dialog);
      dialog.showModal();
    });
  }

  openNotebook(path: string): void {
    const where = path.split('/').map(encodeURIComponent).join('/');
    window.open(new URL(`../lab/tree/${where}`, this.base), '_blank', 'noopener');
  }
}

const dark = window.matchMedia('(prefers-color-scheme: dark)');
const panel = new Panel(new Store(new Page()));

function paint(): void {
  document.documentElement.dataset['jpThemeLight'] = String(!dark.matches);
  panel.repaint();
}

paint();
dark.addEventListener('change', paint);
document.getElementById('panel')?.append(panel.node);
panel.setActive(true);
