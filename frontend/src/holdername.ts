/** Who has a GPU, by name: a link where it is a notebook that can be opened, else text. */

import { button, make, setAttribute, setHidden, setText } from './dom';
import type { Holder } from './holders';
import type { Store } from './store';

export class HolderName {
  readonly link: HTMLButtonElement;
  readonly text = make('span', { class: 'rocmlab-Row-text' });
  private notebook: string | null = null;

  constructor(store: Store) {
    this.link = button('', () => store.host.openNotebook(this.notebook ?? ''), { class: 'rocmlab-Link' });
  }

  update({ name, notebook }: Holder): void {
    this.notebook = notebook;
    const canOpen = notebook !== null;
    setHidden(this.link, !canOpen);
    setHidden(this.text, canOpen);
    setText(this.link, canOpen ? name : '');
    setText(this.text, canOpen ? '' : name);
    setAttribute(this.link, 'aria-label', `Open ${name}`);
  }
}
