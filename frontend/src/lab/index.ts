/** The extension: the command and launcher tile `GPUs`, its panel, the sidebar, and the item in the status bar. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';

import { Store } from '../store';
import { FinishedCells } from './finished';
import { LabHost } from './host';
import { gpuIcon } from './icon';
import { HubNotices } from './notices';
import { Follower } from './outputs';
import { StatusItem } from './status';
import { PanelWidget, SidebarWidget } from './widgets';

const PLUGIN = 'rocmlab-panel:plugin';
const COMMAND = 'rocmlab:open-panel';

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
    themes?.themeChanged.connect(() => tracker.forEach(widget => widget.view.repaint()));

    const open = (): void => void app.commands.execute(COMMAND);
    const sidebar = new SidebarWidget(store, open);
    const addSidebar = (): void => app.shell.add(sidebar, 'left', { rank: 500, type: 'GPUs' });
    addSidebar(); // at once, so that JupyterLab can open it again where it was open
    restorer?.add(sidebar, sidebar.id);

    const item = new StatusItem(app, store, open);
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
          const hasSidebar = settings.composite['sidebar'] !== false;
          if (hasSidebar && sidebar.parent === null) {
            addSidebar();
          } else if (!hasSidebar) {
            sidebar.parent = null;
          }
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
