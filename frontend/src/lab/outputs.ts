/** The other half of rocmlab.lab.recorder: a notebook that is opened again shows what its cells printed, and continues. */

import type { CodeCell } from '@jupyterlab/cells';
import { URLExt } from '@jupyterlab/coreutils';
import type { IOutput } from '@jupyterlab/nbformat';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { type Contents, type Kernel, type KernelMessage, ServerConnection } from '@jupyterlab/services';
import { JSONExt, PromiseDelegate } from '@lumino/coreutils';

const LOOK_MILLISECONDS = 5000;
const QUIET_MILLISECONDS = 10000; // without a message, while a cell runs: is the connection alive?
const PAUSE_MILLISECONDS = 200; // between two requests, or five times as long as the last one took to show
const REPLY_MILLISECONDS = 1500; // in which the reply to a finished cell comes, if it does
const SAVE_MILLISECONDS = 3000; // of a cell's run, then what is not in the file yet is saved
const MAX_ATTEMPTS = 3; // of a save whose file was changed by us meanwhile
const MAX_REQUESTS = 500; // named in an address

interface Change {
  index: number;
  output?: IOutput;
  text?: string; // goes to the end of a stream
}

interface Question {
  prompt: string;
  password: boolean;
  header: KernelMessage.IHeader<'input_request'>;
}

/** What a cell has printed since the last answer, or all of it. */
interface News {
  cell: string;
  request: string;
  state: 'queued' | 'running' | 'done';
  count: number | null;
  question: Question | null;
  is_whole: boolean;
  outputs: Change[];
}

interface Answer {
  number: number;
  cells: News[];
  file: { path: string; before: string; first: string; after: string } | null;
  is_connected: boolean;
  continues: boolean;
}

/** An execution of this page whose messages may have a gap: they are held until it is known who has all of them. */
interface Held {
  future: Kernel.IShellFuture;
  show: (message: KernelMessage.IIOPubMessage) => void | PromiseLike<void>;
  messages: KernelMessage.IIOPubMessage[];
}

const nothing = (): void => undefined;

/** Follows the cells of one notebook that another page has started, or this one before it lost its connection. */
export class Follower {
  private kernel: Kernel.IKernelConnection | null = null;
  private round = 0;
  private number = -1;
  private readonly held = new Map<string, Held>();
  private readonly followed = new Map<string, string>(); // cell: request
  private readonly dropped = new Set<string>(); // requests of cells that were run again here
  private readonly asked = new Set<string>();
  private heard = Date.now();
  private isSaving = false;
  private isSaveWanted = false;
  private readonly timer: number;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly contents: Contents.IManager,
    private readonly savesByItself: () => boolean
  ) {
    const session = panel.sessionContext;
    session.connectionStatusChanged.connect((_, status) =>
      status === 'connected' ? this.connected() : undefined
    );
    session.iopubMessage.connect(() => (this.heard = Date.now()));
    NotebookActions.executionScheduled.connect(this.onScheduled);
    this.timer = window.setInterval(() => void this.look(), LOOK_MILLISECONDS);
    panel.disposed.connect(() => this.stop());
    this.explainConflicts();
    void panel.context.ready.then(() => session.ready).then(() => this.connected(), nothing);
    this.connected();
  }

  private stop(): void {
    this.round++;
    window.clearInterval(this.timer);
    NotebookActions.executionScheduled.disconnect(this.onScheduled);
  }

  /** The kernel's channel is open, for the first time or again. */
  private connected(): void {
    const kernel = this.panel.sessionContext.session?.kernel ?? null;
    if (this.panel.isDisposed || kernel === null || kernel.connectionStatus !== 'connected') {
      return;
    }
    this.hold();
    this.kernel = kernel;
    this.number = -1;
    void this.follow(++this.round, kernel);
  }

  /** Hold the messages of what runs: some may be missing. At the first time nothing of this page runs. */
  private hold(): void {
    for (const cell of this.cells()) {
      const future = cell.outputArea.future as Kernel.IShellFuture | null | undefined;
      if (!future || future.isDisposed || cell.model.executionState !== 'running') {
        continue;
      }
      const request = future.msg.header.msg_id;
      if (!this.held.has(request)) {
        const held: Held = { future, show: future.onIOPub, messages: [] };
        future.onIOPub = message => void held.messages.push(message);
        this.held.set(request, held);
      }
    }
  }

  private async follow(round: number, kernel: Kernel.IKernelConnection): Promise<void> {
    let isFirst = true;
    while (round === this.round) {
      let answer: Answer;
      try {
        answer = await this.request(kernel, `&after=${this.number}`);
      } catch (err) {
        console.warn('rocmlab-panel: what the cells printed could not be read', err);
        this.release(new Set());
        return; // the next connection asks again
      }
      await this.panel.context.ready;
      if (round !== this.round) {
        return;
      }
      this.number = answer.number;
      const begin = performance.now();
      answer.cells.forEach(news => this.show(news, kernel));
      if (isFirst) {
        this.release(new Set(answer.cells.map(news => news.request)));
        await this.adopt(answer);
        isFirst = false;
      }
      if (!answer.is_connected && kernel.connectionStatus === 'connected') {
        await kernel.reconnect().catch(nothing);
        return;
      }
      if (!answer.continues) {
        return;
      }
      const least = answer.cells.length > 0 ? PAUSE_MILLISECONDS : 5 * PAUSE_MILLISECONDS;
      const pause = Math.max(least, 5 * (performance.now() - begin));
      await new Promise(resolve => window.setTimeout(resolve, pause));
    }
  }

  private async request(kernel: Kernel.IKernelConnection, query: string): Promise<Answer> {
    const settings = kernel.serverSettings;
    const own = [...this.held.keys()].slice(0, MAX_REQUESTS).join(',');
    const url = URLExt.join(settings.baseUrl, 'rocmlab/api/outputs', encodeURIComponent(kernel.id));
    const notebook = encodeURIComponent(this.panel.sessionContext.session?.id ?? '');
    const page = `session=${encodeURIComponent(kernel.clientId)}&notebook=${notebook}`;
    const address = `${url}?${page}&requests=${own}${query}`;
    const response = await ServerConnection.makeRequest(address, { cache: 'no-store' }, settings);
    if (!response.ok) {
      throw new ServerConnection.ResponseError(response);
    }
    return (await response.json()) as Answer;
  }

  /** Let the page show by itself what the recorder does not know. */
  private release(known: Set<string>): void {
    for (const [request, held] of this.held) {
      if (!known.has(request)) {
        this.held.delete(request);
        if (!held.future.isDisposed) {
          held.future.onIOPub = held.show;
          held.messages.forEach(message => void held.show(message));
        }
      } else {
        held.messages.length = 0;
        held.future.onIOPub = nothing;
      }
    }
  }

  private show(news: News, kernel: Kernel.IKernelConnection): void {
    const cell = this.cells().find(each => each.model.id === news.cell);
    if (cell === undefined || this.dropped.has(news.request)) {
      return;
    }
    this.followed.set(news.cell, news.request);
    const model = cell.model;
    model.trusted = true; // as JupyterLab has it for what was executed
    if (news.is_whole) {
      showWhole(cell, news.outputs);
    } else {
      news.outputs.forEach(change => showChange(cell, change));
    }
    if (news.state !== 'done') {
      model.executionState = 'running';
      this.ask(cell, news.question, kernel);
      return;
    }
    const held = this.held.get(news.request);
    const finish = (): void => {
      if (!cell.isDisposed && this.followed.get(news.cell) === news.request) {
        this.ask(cell, null, kernel);
        model.executionState = 'idle';
        model.executionCount = news.count;
      }
    };
    if (held === undefined) {
      finish();
      return;
    }
    this.held.delete(news.request);
    window.setTimeout(() => {
      if (!cell.isDisposed && cell.outputArea.future === held.future && model.executionState === 'running') {
        held.future.dispose(); // its reply was lost
        window.setTimeout(finish);
      }
    }, REPLY_MILLISECONDS);
  }

  /** Show what `input()` waits for, once; null: it does not wait any more. */
  private ask(cell: CodeCell, question: Question | null, kernel: Kernel.IKernelConnection): void {
    if (question === null) {
      const open = cell.outputArea.widgets.filter(each => each.hasClass('jp-OutputArea-stdin-item'));
      open.filter(each => !each.hasClass('jp-OutputArea-stdin-hiding')).forEach(each => each.dispose());
      return;
    }
    if (this.asked.has(question.header.msg_id)) {
      return;
    }
    this.asked.add(question.header.msg_id);
    const area = cell.outputArea as unknown as {
      onInputRequest?: (message: unknown, future: unknown) => void;
    };
    const answer = (
      content: KernelMessage.IInputReplyMsg['content'],
      parent: KernelMessage.IInputReplyMsg['parent_header']
    ): void => kernel.sendInputReply(content, parent);
    const { prompt, password, header } = question;
    try {
      area.onInputRequest?.({ header, content: { prompt, password } }, { sendInputReply: answer });
    } catch (err) {
      console.warn('rocmlab-panel: the question of a cell could not be shown', err);
    }
  }

  /** The file may be newer than the page's copy by what the recorder wrote: then it has not "changed on disk". */
  private async adopt({ file }: Answer): Promise<boolean> {
    const { context } = this.panel;
    const inner = context as unknown as { _contentsModel?: object | null };
    const known = context.contentsModel;
    const time = (text: string): number => Date.parse(text);
    if (file === null || known === null || !inner._contentsModel || file.path !== context.localPath) {
      return false;
    }
    const read = time(known.last_modified);
    if (read !== time(file.before) && (read < time(file.first) || read > time(file.after))) {
      return false; // someone else's change is in between, and JupyterLab asks
    }
    const now = await this.contents.get(context.path, { content: false, hash: true }).catch(() => null);
    if (now === null || time(now.last_modified) !== time(file.after)) {
      return false;
    }
    const { last_modified, hash, hash_algorithm } = now;
    inner._contentsModel = { ...inner._contentsModel, last_modified, hash, hash_algorithm };
    const isTaken = context.contentsModel?.last_modified === last_modified; // else the name has another meaning
    return isTaken && (last_modified !== known.last_modified || hash !== known.hash);
  }

  /**
   * A save that begins before the page has its connection back finds a newer file: ask whose change it is. Saves that
   * waited together find each other's files as well, so they are made one after the other, each with what the page has then.
   */
  private explainConflicts(): void {
    type Save = (...given: unknown[]) => Promise<unknown>;
    const context = this.panel.context as unknown as {
      _raiseConflict?: Save;
      _maybeSave?: Save;
      _createSaveOptions?: () => unknown;
    };
    const { _raiseConflict: raise, _maybeSave: save, _createSaveOptions: createOptions } = context;
    if (typeof raise !== 'function' || typeof save !== 'function' || typeof createOptions !== 'function') {
      return;
    }
    const underWay = new Map<unknown, PromiseDelegate<void>>(); // by options: resolved at the end, or at a conflict
    const attempts = new Map<unknown, number>(); // of those that are made again
    let last: Promise<unknown> = Promise.resolve();
    let questions = 0; // to the user
    const end = (options: unknown): void => {
      underWay.get(options)?.resolve();
      underWay.delete(options);
    };
    const resolve = async (model: unknown, options: unknown, attempt: number): Promise<unknown> => {
      await Promise.all([...underWay.values()].map(each => each.promise));
      if (attempt >= MAX_ATTEMPTS || !(await this.isOurs().catch(() => false))) {
        questions++;
        return raise.call(context, model, options);
      }
      const current = createOptions.call(context);
      attempts.set(current, attempt + 1);
      return save.call(context, current).finally(() => attempts.delete(current));
    };
    context._maybeSave = options => {
      underWay.set(options, new PromiseDelegate());
      return save.call(context, options).finally(() => end(options));
    };
    context._raiseConflict = (model, options) => {
      end(options);
      const attempt = attempts.get(options);
      if (attempt !== undefined) {
        return resolve(model, options, attempt);
      }
      const before = questions;
      const turn = last.then(() => {
        // The user has decided about another save meanwhile: this one may hold what was reverted. JupyterLab rejects it too.
        if (questions !== before) {
          throw Object.assign(new Error('Modal is already displayed'), { name: 'ModalDuplicateError' });
        }
        return resolve(model, options, 0);
      });
      last = turn.catch(nothing);
      return turn;
    };
  }

  /** The newer file is the recorder's, which the page takes over, or the page's own by now. */
  private async isOurs(): Promise<boolean> {
    const kernel = this.panel.sessionContext.session?.kernel ?? null;
    const answer = kernel && (await this.request(kernel, '&only=connection').catch(() => null));
    if (answer !== null && (await this.adopt(answer))) {
      return true;
    }
    const { context } = this.panel;
    const now = await this.contents.get(context.path, { content: false, hash: true });
    const known = context.contentsModel;
    return now.last_modified === known?.last_modified && now.hash === known.hash;
  }

  /** A cell is run here: what it did before is no concern any more, and its cell should be in the file. */
  private readonly onScheduled = (_: unknown, { cell }: { cell: { model: { id: string } } }): void => {
    const found = this.cells().find(each => each === cell);
    if (found === undefined) {
      return;
    }
    const request = this.followed.get(found.model.id);
    if (request !== undefined) {
      this.ask(found, null, this.kernel as Kernel.IKernelConnection);
      this.dropped.add(request);
      this.followed.delete(found.model.id);
    }
    window.setTimeout(() => {
      const { context } = this.panel;
      const isOpen = !found.isDisposed && !this.panel.isDisposed;
      if (isOpen && found.model.executionState === 'running' && context.model.dirty && this.savesByItself()) {
        void this.save();
      }
    }, SAVE_MILLISECONDS);
  };

  /** Save, one at a time: all cells of "Run All" ask for it in the same moment. */
  private async save(): Promise<void> {
    this.isSaveWanted = true;
    if (this.isSaving) {
      return;
    }
    this.isSaving = true;
    while (this.isSaveWanted && !this.panel.isDisposed && this.panel.context.model.dirty) {
      this.isSaveWanted = false;
      await this.panel.context.save().catch(nothing); // JupyterLab has shown why
    }
    this.isSaving = false;
  }

  /** See whether the server still knows this connection: after sleep, or a break of the network, only it can tell. */
  private async look(): Promise<void> {
    const kernel = this.panel.sessionContext.session?.kernel ?? null;
    const isQuiet = Date.now() - this.heard > QUIET_MILLISECONDS;
    if (kernel?.connectionStatus !== 'connected' || !isQuiet || !this.isRunning()) {
      return;
    }
    const answer = await this.request(kernel, '&only=connection').catch(() => null);
    if (answer?.is_connected === false && kernel.connectionStatus === 'connected') {
      this.heard = Date.now();
      await kernel.reconnect().catch(nothing);
    }
  }

  private isRunning(): boolean {
    return this.cells().some(cell => cell.model.executionState === 'running');
  }

  private cells(): CodeCell[] {
    return this.panel.content.widgets.filter((cell): cell is CodeCell => cell.model.type === 'code');
  }
}

function showWhole(cell: CodeCell, changes: Change[]): void {
  const { outputs } = cell.model;
  const wanted = changes.map(change => change.output as IOutput);
  const shown = outputs.toJSON();
  const same = shown.findIndex((each, index) => !JSONExt.deepEqual(each, wanted[index] ?? null));
  if (shown.length > wanted.length || (same !== -1 && same < shown.length - 1)) {
    outputs.clear();
  }
  wanted.forEach((output, index) => showChange(cell, { index, output }));
}

/** Bring one output up to date; text is changed where it differs, so that it neither flickers nor scrolls. */
function showChange(cell: CodeCell, { index, output, text }: Change): void {
  const { outputs } = cell.model;
  if (index >= outputs.length) {
    if (output !== undefined) {
      outputs.add(output);
    }
    return;
  }
  const shown = outputs.get(index);
  const stream = shown.type === 'stream' ? shown.streamText : undefined;
  if (stream !== undefined && text !== undefined) {
    stream.insert(stream.text.length, text);
  } else if (output !== undefined && stream !== undefined && output['name'] === shown.toJSON()['name']) {
    const now = output['text'] as string;
    let same = 0;
    while (same < now.length && now[same] === stream.text[same]) {
      same++;
    }
    if (same < stream.text.length) {
      stream.remove(same, stream.text.length);
    }
    if (same < now.length) {
      stream.insert(same, now.slice(same));
    }
  } else if (output !== undefined && !JSONExt.deepEqual(shown.toJSON(), output)) {
    outputs.set(index, output);
  }
}
