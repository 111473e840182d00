// Write what `scripts/build-frontend` adds to JupyterLab's own builder: the page of its own, the licences of what is
// bundled into it, and beside each output from which sources it was built.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync, copyFileSync } from 'node:fs';
import { join, relative, sep } from 'node:path';
import { build } from 'esbuild';

const HERE = import.meta.dirname;
const PACKAGE = join(HERE, '../src/rocmlab/lab');
const EXTENSION = join(PACKAGE, 'labextension');
const PAGE = join(PACKAGE, 'server/static');
const NO_SOURCES = ['node_modules', 'lib', '.npmrc', '.gitignore'];

function files(folder) {
  return readdirSync(folder).flatMap(name => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : [path];
  });
}

function sha256(bytes) {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Return {path: sha256} of files below a folder; paths with slashes, in order. */
function digests(folder, paths) {
  const named = paths.map(path => [relative(folder, path).split(sep).join('/'), sha256(readFileSync(path))]);
  return Object.fromEntries(named.sort(([one], [other]) => (one < other ? -1 : 1)));
}

function sources() {
  const top = readdirSync(HERE).filter(name => !NO_SOURCES.includes(name) && !name.endsWith('.tsbuildinfo'));
  return top.flatMap(name => {
    const path = join(HERE, name);
    return statSync(path).isDirectory() ? files(path) : [path];
  });
}

/** Record from which sources an output was built, and what it is, so that a test sees when either has changed. */
function record(folder, from) {
  const name = join(folder, 'built.json');
  rmSync(name, { force: true });
  const text = JSON.stringify({ sources: from, files: digests(folder, files(folder)) }, null, 1);
  writeFileSync(name, `${text}\n`);
}

/** Return the licences of the packages whose files are in a bundle. */
function licences(inputs) {
  const names = new Set();
  for (const input of inputs) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) {
      names.add(found[1]);
    }
  }
  return [...names].sort().map(name => {
    const folder = join(HERE, 'node_modules', name);
    const about = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    const file = readdirSync(folder).find(each => /^licen[cs]e/i.test(each));
    if (!file) {
      throw new Error(`${name} has no licence file`);
    }
    return `${name} ${about.version} (${about.license})\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
  });
}

rmSync(PAGE, { recursive: true, force: true });
mkdirSync(PAGE, { recursive: true });
const result = await build({
  absWorkingDir: HERE,
  entryPoints: { panel: 'src/page/main.ts', style: 'page/page.css' },
  outdir: PAGE,
  bundle: true,
  minify: true,
  format: 'iife', // a classic script: JupyterHub redirects the request of a module to its login
  target: ['es2022', 'chrome111', 'firefox111', 'safari16.4'],
  legalComments: 'none',
  metafile: true,
  logLevel: 'warning'
});
for (const name of ['index.html', 'icon.svg']) {
  copyFileSync(join(HERE, 'page', name), join(PAGE, name));
}
writeFileSync(join(PAGE, 'LICENSES.txt'), licences(Object.keys(result.metafile.inputs)).join('\n---\n\n'));

if (!existsSync(join(EXTENSION, 'package.json'))) {
  throw new Error('the JupyterLab extension is not built: run scripts/build-frontend');
}
const from = digests(HERE, sources());
record(PAGE, from);
record(EXTENSION, from);
