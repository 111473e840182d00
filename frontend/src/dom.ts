/** Elements without a framework: everything that comes from the server is put in as text, and written only if it changed. */

export type Child = Node | string;

/** Make an element. Attributes are strings; `class` is one of them. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function button(
  text: string,
  onClick: () => void,
  attributes: Record<string, string> = {}
): HTMLButtonElement {
  const node = make('button', { type: 'button', class: 'rocmlab-Button', ...attributes }, text);
  node.addEventListener('click', onClick);
  return node;
}

export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function setAttribute(node: Element, name: string, value: string | null): void {
  if (value === null) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

export function setHidden(node: HTMLElement, hidden: boolean): void {
  if (node.hidden !== hidden) {
    node.hidden = hidden;
  }
}

export interface View<T> {
  readonly node: HTMLElement;
  update(item: T): void;
  dispose?(): void;
}

/** The children of a node, one view for each item by its key: kept, moved, added and removed as the items are. */
export class List<T> {
  private readonly views = new Map<string, View<T>>();

  constructor(
    private readonly parent: HTMLElement,
    private readonly key: (item: T) => string,
    private readonly create: (item: T) => View<T>
  ) {}

  update(items: readonly T[]): void {
    const focused = document.activeElement;
    const wanted = new Map(items.map(item => [this.key(item), item]));
    for (const [key, view] of this.views) {
      if (!wanted.has(key)) {
        view.node.remove();
        view.dispose?.();
        this.views.delete(key);
      }
    }
    let place = this.parent.firstElementChild;
    for (const [key, item] of wanted) {
      let view = this.views.get(key);
      if (view === undefined) {
        view = this.create(item);
        this.views.set(key, view);
      }
      view.update(item);
      if (view.node === place) {
        place = place.nextElementSibling;
      } else {
        this.parent.insertBefore(view.node, place);
      }
    }
    // An element that is moved loses the focus.
    if (
      focused instanceof HTMLElement &&
      focused !== document.activeElement &&
      this.parent.contains(focused)
    ) {
      focused.focus({ preventScroll: true });
    }
  }

  get(key: string): View<T> | undefined {
    return this.views.get(key);
  }

  dispose(): void {
    this.update([]);
  }
}

/** Put a text on the clipboard; false if the browser does not allow it. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without HTTPS there is no navigator.clipboard, except on localhost.
    const field = make('textarea', { class: 'rocmlab-mod-unseen', 'aria-hidden': 'true' });
    field.value = text;
    const focused = document.activeElement;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    if (focused instanceof HTMLElement) {
      focused.focus();
    }
    return done;
  }
}
