/** What the panel needs from whatever shows it: JupyterLab, or a page of its own. */

export interface Question {
  title: string;
  text: string;
  action: string; // what the button says that does it
}

export interface Host {
  /** Return the address of a path below `rocmlab/`, with what authenticates a request that can have no header. */
  address(path: string): string;
  /** Ask the server; the answer may be an error. Throws if there is none. */
  request(path: string, method?: 'GET' | 'POST'): Promise<Response>;
  /** Ask the user; true if they want it. */
  confirm(question: Question): Promise<boolean>;
  /** Show a notebook, by its path as the server knows it. */
  openNotebook(path: string): void;
}

/** Return the XSRF token that the server has put into a cookie of this path, empty where there is none. */
export function xsrf(): string {
  return /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? '';
}

/** Add the XSRF token to an address: behind JupyterHub a read by a script needs it, as a change does everywhere. */
export function withXsrf(url: URL): string {
  const token = xsrf();
  if (token !== '') {
    url.searchParams.set('_xsrf', token);
  }
  return url.href;
}

/** Return what a failed request says, as one sentence. */
export async function reason(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  try {
    const body = JSON.parse(text) as Record<string, unknown>;
    const problem = (typeof body['problem'] === 'object' ? body['problem'] : body) as Record<string, unknown>;
    const words = [problem['what'] ?? problem['message'], problem['why'], problem['fix']];
    const found = words.filter(word => typeof word === 'string' && word !== '');
    if (found.length > 0) {
      return found.join(': ');
    }
  } catch {
    // not JSON: the status says it
  }
  return `the server answered ${response.status} ${response.statusText}`.trim();
}
