/** The extension: the command and launcher tile `GPUs`, its panel, and the item in the status bar. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { Panel } from '../panel';
import { Store } from '../store';
import { FinishedCells } from './finished';
import { LabHost } from './host';
import { gpuIcon } from './icon';
import { HubNotices } from './notices';
import { Follower } from './outputs';
import { StatusItem } from './status';

const PLUGIN = 'rocmlab-panel:plugin';
const COMMAND = 'rocmlab:open-panel';

/** The panel as a tab: it looks while it can be seen. */
class PanelWidget extends Widget {
  readonly panel: Panel;

  constructor(store: Store) {
    super();
    this.panel = new Panel(store);
    this.node.append(this.panel.node);
    this.id = 'rocmlab-panel';
    this.addClass('rocmlab-PanelWidget');
    this.title.label = 'GPUs';
    this.title.caption = 'GPUs: what they do and who has them';
    this.title.icon = gpuIcon;
    this.title.closable = true;
    this.node.tabIndex = -1;
  }

  override dispose(): void {
    this.panel.dispose();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.panel.setActive(true);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.panel.setActive(this.isVisible);
  }

  protected override onBeforeHide(message: Message): void {
    this.panel.setActive(false);
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.panel.setActive(false);
    super.onBeforeDetach(message);
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: 'Shows what the GPUs do, and which notebook has them.',
  autoStart: true,
  optional: [ICommandPalette, ILauncher, ILayoutRestorer, ISettingRegistry, IStatusBar, IThemeManager],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    restorer: ILayoutRestorer | null,
    registry: ISettingRegistry | null,
    statusBar: IStatusBar | null,
    themes: IThemeManager | null
  ): void => {
    const store = new Store(new LabHost(app));
    const tracker = new WidgetTracker<PanelWidget>({ namespace: 'rocmlab' });
    let place = 'main';

    app.commands.addCommand(COMMAND, {
      label: args => (args['isPalette'] === true ? 'Show GPUs' : 'GPUs'),
      caption: 'What the GPUs do, and which notebook has them',
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: { isPalette: { type: 'boolean' } } } },
      execute: async () => {
        let widget = tracker.currentWidget;
        if (widget === null || widget.isDisposed) {
          widget = new PanelWidget(store);
          await tracker.add(widget);
        }
        if (!widget.isAttached) {
          widget.title.label = place === 'left' ? '' : 'GPUs'; // a sidebar has icons
          app.shell.add(widget, place, { rank: 300 });
        }
        app.shell.activateById(widget.id);
        return widget;
      }
    });
    palette?.addItem({ command: COMMAND, category: 'GPUs', args: { isPalette: true } });
    launcher?.add({ command: COMMAND, category: 'Other', rank: 1 });
    void restorer?.restore(tracker, { command: COMMAND, name: () => 'rocmlab-panel' });
    themes?.themeChanged.connect(() => tracker.forEach(widget => widget.panel.repaint()));

    const item = new StatusItem(app, store, () => void app.commands.execute(COMMAND));
    statusBar?.registerStatusItem(PLUGIN, {
      item,
      align: 'left',
      rank: 4,
      isActive: () => item.isShown,
      activeStateChanged: item.stateChanged
    });

    registry?.load(PLUGIN).then(
      settings => {
        const follow = (): void => {
          place = settings.composite['place'] === 'left' ? 'left' : 'main';
          item.switch(settings.composite['statusBar'] !== false);
        };
        settings.changed.connect(follow);
        follow();
      },
      (err: unknown) => console.warn('rocmlab-panel: its settings could not be read', err)
    );
  }
};

const outputs: JupyterFrontEndPlugin<void> = {
  id: 'rocmlab-panel:outputs',
  description: 'Shows what cells printed while no page was connected, and continues with it.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [IDocumentManager],
  activate: (app: JupyterFrontEnd, notebooks: INotebookTracker, documents: IDocumentManager | null): void => {
    const { contents } = app.serviceManager;
    notebooks.widgetAdded.connect(
      (_, panel) => new Follower(panel, contents, () => documents?.autosave ?? false)
    );
  }
};

const finished: JupyterFrontEndPlugin<void> = {
  id: 'rocmlab-panel:finished',
  description: 'Notifies of long cells that end while their page is hidden, if its setting is on.',
  autoStart: true,
  requires: [INotebookTracker, ISettingRegistry],
  activate: (app: JupyterFrontEnd, notebooks: INotebookTracker, registry: ISettingRegistry): void => {
    registry.load('rocmlab-panel:finished').then(
      settings => new FinishedCells(app, notebooks, settings),
      (err: unknown) => console.warn('rocmlab-panel: the setting of notifications could not be read', err)
    );
  }
};

const notices: JupyterFrontEndPlugin<void> = {
  id: 'rocmlab-panel:notices',
  description: 'Shows what an administrator of JupyterHub tells all users.',
  autoStart: true,
  activate: (app: JupyterFrontEnd): void => {
    if (PageConfig.getOption('hubPrefix') !== '') {
      void app.restored.then(() => new HubNotices(new LabHost(app)));
    }
  }
};

export default [plugin, outputs, finished, notices];
