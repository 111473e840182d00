import { LabIcon } from '@jupyterlab/ui-components';

export const gpuIcon = new LabIcon({
  name: 'rocmlab:gpu',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
<g class="jp-icon3" fill="#616161"><path fill-rule="evenodd" d="M2 4v17h2v-3h17a1 1 0 0 0 1-1V7a1 1 0 0 0-1-1H4V4zm2 4h16v8H4z"/><path
 fill-rule="evenodd" d="M9 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zm0 2a1 1 0 1 1 0 2 1 1 0 0 1 0-2zm6-2a3 3 0 1 0 0 6 3 3 0 0 0 0-6zm0 2a1 1 0 1 1 0
 2 1 1 0 0 1 0-2z"/><path d="M7 19h8v2H7z"/></g></svg>`
});
