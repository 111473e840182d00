/** The panel as a tab of JupyterLab, and its compact form in the sidebar: each looks while it can be seen. */

import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { Compact } from '../compact';
import { Panel } from '../panel';
import type { Store } from '../store';
import { gpuIcon } from './icon';

interface View {
  readonly node: HTMLElement;
  setActive(active: boolean): void;
  dispose(): void;
}

class ViewWidget<T extends View> extends Widget {
  constructor(readonly view: T) {
    super();
    this.node.append(view.node);
    this.addClass('rocmlab-PanelWidget');
    this.title.icon = gpuIcon;
    this.node.tabIndex = -1;
  }

  override dispose(): void {
    this.view.dispose();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.view.setActive(true);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.view.setActive(this.isVisible);
  }

  protected override onBeforeHide(message: Message): void {
    this.view.setActive(false);
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.view.setActive(false);
    super.onBeforeDetach(message);
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }
}

export class PanelWidget extends ViewWidget<Panel> {
  constructor(store: Store) {
    super(new Panel(store));
    this.id = 'rocmlab-panel';
    this.title.label = 'GPUs';
    this.title.caption = 'GPUs: what they do and who has them';
    this.title.closable = true;
  }
}

export class SidebarWidget extends ViewWidget<Compact> {
  constructor(store: Store, open: () => void) {
    super(new Compact(store, open));
    this.id = 'rocmlab-sidebar';
    this.title.caption = 'GPUs, in short';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPUs, in short');
  }
}
