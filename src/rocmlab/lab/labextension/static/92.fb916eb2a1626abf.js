"use strict";(self.rspackChunkrocmlab_panel=self.rspackChunkrocmlab_panel||[]).push([[92],{757(o,a,r){var e=r(601),t=r.n(e),l=r(314),n=(r.n(l))()(t());n.push([o.id,'.uplot, .uplot *, .uplot *::before, .uplot *::after {box-sizing: border-box;}.uplot {font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji";line-height: 1.5;width: min-content;}.u-title {text-align: center;font-size: 18px;font-weight: bold;}.u-wrap {position: relative;user-select: none;}.u-over, .u-under {position: absolute;}.u-under {overflow: hidden;}.uplot canvas {display: block;position: relative;width: 100%;height: 100%;}.u-axis {position: absolute;}.u-legend {font-size: 14px;margin: auto;text-align: center;}.u-inline {display: block;}.u-inline * {display: inline-block;}.u-inline tr {margin-right: 16px;}.u-legend th {font-weight: 600;}.u-legend th > * {vertical-align: middle;display: inline-block;}.u-legend .u-marker {width: 1em;height: 1em;margin-right: 4px;background-clip: padding-box !important;}.u-inline.u-live th::after {content: ":";vertical-align: middle;}.u-inline:not(.u-live) .u-value {display: none;}.u-series > * {padding: 4px;}.u-series th {cursor: pointer;}.u-legend .u-off > * {opacity: 0.3;}.u-select {background: rgba(0,0,0,0.07);position: absolute;pointer-events: none;}.u-cursor-x, .u-cursor-y {position: absolute;left: 0;top: 0;pointer-events: none;will-change: transform;}.u-hz .u-cursor-x, .u-vt .u-cursor-y {height: 100%;border-right: 1px dashed #607D8B;}.u-hz .u-cursor-y, .u-vt .u-cursor-x {width: 100%;border-bottom: 1px dashed #607D8B;}.u-cursor-pt {position: absolute;top: 0;left: 0;border-radius: 50%;border: 0 solid;pointer-events: none;will-change: transform;/*this has to be !important since we set inline "background" shorthand */background-clip: padding-box !important;}.u-axis.u-off, .u-select.u-off, .u-cursor-x.u-off, .u-cursor-y.u-off, .u-cursor-pt.u-off {display: none;}',""]),r.d(a,{},{A:n})},724(o,a,r){var e=r(601),t=r.n(e),l=r(314),n=(r.n(l))()(t());n.push([o.id,`/* The panel in JupyterLab and on its own page. Every colour is JupyterLab's, or one of the five below. */

:root {
  --rocmlab-busy: #1565c0;
  --rocmlab-busy-fill: #1565c01f;
  --rocmlab-memory: #7b1fa2;
  --rocmlab-memory-fill: #7b1fa21f;
  --rocmlab-power: #b45309;
  --rocmlab-power-fill: #b453091f;
  --rocmlab-temperature: #c62828;
  --rocmlab-temperature-fill: #c628281f;
  --rocmlab-limit: #8a8a8a;
  --rocmlab-grid: #00000014;
  --rocmlab-good: #2e7d32;
  --rocmlab-warn: #9a5b00;
  --rocmlab-warn-back: #fff4e0;
  --rocmlab-bad: #b71c1c;
}

[data-jp-theme-light='false'] {
  --rocmlab-busy: #64b5f6;
  --rocmlab-busy-fill: #64b5f629;
  --rocmlab-memory: #ce93d8;
  --rocmlab-memory-fill: #ce93d829;
  --rocmlab-power: #ffb74d;
  --rocmlab-power-fill: #ffb74d29;
  --rocmlab-temperature: #ef8a80;
  --rocmlab-temperature-fill: #ef8a8029;
  --rocmlab-limit: #9e9e9e;
  --rocmlab-grid: #ffffff1f;
  --rocmlab-good: #81c784;
  --rocmlab-warn: #ffb74d;
  --rocmlab-warn-back: #3a2a10;
  --rocmlab-bad: #ef8a80;
}

.rocmlab-PanelWidget {
  overflow: auto;
  background: var(--jp-layout-color1);
  outline: none;
}

.rocmlab-Panel {
  container-type: inline-size;
  padding: 16px;
  max-width: 1500px;
  margin: 0 auto;
  box-sizing: border-box;
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: 13px;
  line-height: 1.4;
}

.rocmlab-Panel [hidden] {
  display: none !important;
}

.rocmlab-Panel h1,
.rocmlab-Panel h2,
.rocmlab-Panel h3,
.rocmlab-Panel p,
.rocmlab-Panel ul,
.rocmlab-Panel dl,
.rocmlab-Panel dd {
  margin: 0;
  padding: 0;
}

.rocmlab-Panel h1 {
  font-size: 20px;
  font-weight: 600;
}

.rocmlab-Panel h2 {
  font-size: 15px;
  font-weight: 600;
  margin-bottom: 8px;
}

.rocmlab-Panel :focus-visible,
.rocmlab-StatusItem-button:focus-visible,
.rocmlab-Dialog :focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: 1px;
}

.rocmlab-mod-unseen {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
  white-space: nowrap;
}

.rocmlab-Section {
  margin-top: 18px;
}

.rocmlab-None {
  color: var(--jp-ui-font-color2);
}

.rocmlab-Plain {
  list-style: none;
  display: grid;
  gap: 8px;
}

/* -- head */

.rocmlab-Banner {
  margin: 0 0 12px !important;
  padding: 6px 12px !important;
  border: 1px solid var(--rocmlab-warn);
  border-radius: 6px;
  background: var(--rocmlab-warn-back);
}

.rocmlab-Banner strong {
  color: var(--rocmlab-warn);
  letter-spacing: 0.04em;
}

.rocmlab-Head {
  display: flex;
  flex-wrap: wrap;
  align-items: baseline;
  gap: 4px 14px;
}

.rocmlab-Summary {
  flex: 1 1 auto;
  color: var(--jp-ui-font-color2);
  font-variant-numeric: tabular-nums;
}

.rocmlab-Status {
  color: var(--jp-ui-font-color2);
  white-space: nowrap;
}

.rocmlab-Status::before {
  content: '';
  display: inline-block;
  width: 8px;
  height: 8px;
  margin-right: 6px;
  border-radius: 50%;
  background: var(--rocmlab-limit);
}

.rocmlab-Status[data-status='live']::before {
  background: var(--rocmlab-good);
}

.rocmlab-Status[data-status='lost'],
.rocmlab-Status[data-status='refused'] {
  color: var(--rocmlab-bad);
  font-weight: 600;
  white-space: normal;
}

.rocmlab-Status[data-status='lost']::before,
.rocmlab-Status[data-status='refused']::before {
  background: var(--rocmlab-bad);
}

.rocmlab-mod-old .rocmlab-Cards,
.rocmlab-mod-old .rocmlab-Table {
  opacity: 0.55;
}

.rocmlab-Alert {
  display: flex;
  gap: 12px;
  align-items: center;
  justify-content: space-between;
  margin-top: 12px;
  padding: 8px 12px;
  border-left: 3px solid var(--rocmlab-bad);
  background: var(--jp-layout-color2);
  overflow-wrap: anywhere;
}

/* -- buttons */

.rocmlab-Button {
  min-height: 26px;
  padding: 2px 10px;
  border: 1px solid var(--jp-border-color1);
  border-radius: 4px;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font: inherit;
  font-size: 12px;
  white-space: nowrap;
  cursor: pointer;
}

.rocmlab-Button:hover {
  background: var(--jp-layout-color2);
}

.rocmlab-Button[aria-disabled='true'] {
  opacity: 0.5;
  cursor: default;
}

.rocmlab-Button.rocmlab-mod-warn {
  border-color: var(--rocmlab-bad);
  color: var(--rocmlab-bad);
}

.rocmlab-Link {
  padding: 0;
  border: 0;
  background: none;
  color: var(--jp-content-link-color);
  font: inherit;
  font-weight: 600;
  text-align: left;
  overflow-wrap: anywhere;
  cursor: pointer;
}

.rocmlab-Link:hover {
  text-decoration: underline;
}

.rocmlab-Chip {
  display: inline-block;
  padding: 0 8px;
  border-radius: 9px;
  font-size: 11px;
  font-weight: 600;
  line-height: 18px;
}

.rocmlab-Chip.rocmlab-mod-warn {
  background: var(--rocmlab-warn-back);
  color: var(--rocmlab-warn);
}

.rocmlab-Chip.rocmlab-mod-quiet {
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color2);
}

/* -- idle holders and problems */

.rocmlab-Idle {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 16px;
  align-items: center;
  justify-content: space-between;
  padding: 8px 12px;
  border-left: 3px solid var(--rocmlab-warn);
  border-radius: 2px 6px 6px 2px;
  background: var(--rocmlab-warn-back);
}

.rocmlab-Idle p {
  flex: 1 1 220px;
  overflow-wrap: anywhere;
}

.rocmlab-Problem {
  padding: 8px 12px;
  border-left: 3px solid var(--rocmlab-bad);
  border-radius: 2px 6px 6px 2px;
  background: var(--jp-layout-color2);
  overflow-wrap: anywhere;
}

.rocmlab-Problem.rocmlab-mod-warn {
  border-left-color: var(--rocmlab-warn);
}

.rocmlab-Problem-what {
  font-weight: 600;
}

.rocmlab-Problem-why {
  color: var(--jp-ui-font-color2);
}

.rocmlab-Problem-fix {
  display: flex;
  gap: 12px;
  align-items: start;
  justify-content: space-between;
  margin-top: 6px;
}

.rocmlab-Problem-fix code {
  flex: 1 1 auto;
  padding: 4px 8px;
  border-radius: 4px;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-code-font-family);
  font-size: 12px;
  white-space: pre-wrap;
}

/* -- devices */

.rocmlab-Cards {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 430px), 1fr));
  gap: 14px;
}

.rocmlab-Card {
  min-width: 0;
  padding: 12px 14px 8px;
  border: 1px solid var(--jp-border-color2);
  border-radius: 8px;
  background: var(--jp-layout-color1);
}

.rocmlab-Card-head {
  display: flex;
  flex-wrap: wrap;
  align-items: baseline;
  gap: 2px 10px;
}

.rocmlab-Panel .rocmlab-Card-name {
  font-size: 15px;
  font-weight: 600;
  white-space: nowrap;
}

.rocmlab-Card-product {
  flex: 1 1 auto;
  overflow-wrap: anywhere;
}

.rocmlab-Card-chips {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
}

.rocmlab-Card-lease {
  color: var(--jp-ui-font-color2);
  overflow-wrap: anywhere;
}

.rocmlab-Card-lease.rocmlab-mod-held {
  color: var(--jp-ui-font-color1);
}

.rocmlab-Card-charts {
  display: grid;
  grid-template-columns: repeat(2, minmax(0, 1fr));
  gap: 8px 14px;
  margin: 8px 0 4px;
}

.rocmlab-Chart-head {
  display: flex;
  flex-wrap: wrap;
  justify-content: space-between;
  gap: 0 8px;
}

.rocmlab-Chart-title {
  color: var(--jp-ui-font-color2);
}

.rocmlab-Chart-value {
  font-weight: 600;
  font-variant-numeric: tabular-nums;
}

.rocmlab-Chart.rocmlab-mod-busy .rocmlab-Chart-value {
  color: var(--rocmlab-busy);
}

.rocmlab-Chart.rocmlab-mod-memory .rocmlab-Chart-value {
  color: var(--rocmlab-memory);
}

.rocmlab-Chart.rocmlab-mod-power .rocmlab-Chart-value {
  color: var(--rocmlab-power);
}

.rocmlab-Chart.rocmlab-mod-temperature .rocmlab-Chart-value {
  color: var(--rocmlab-temperature);
}

.rocmlab-mod-asleep .rocmlab-Chart-value.rocmlab-Chart-value {
  color: var(--jp-ui-font-color2);
  font-weight: 400;
}

.rocmlab-Chart-plot {
  height: 92px;
  overflow: hidden;
}

.rocmlab-Card-details summary {
  width: fit-content;
  color: var(--jp-ui-font-color2);
  cursor: pointer;
}

.rocmlab-Panel .rocmlab-Card-facts {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(140px, 1fr));
  gap: 4px 14px;
  padding: 6px 0;
}

.rocmlab-Card-facts dt {
  color: var(--jp-ui-font-color2);
  font-size: 11px;
}

.rocmlab-Card-facts dd {
  overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums;
}

/* The CPU beside GPUs: one line. */
.rocmlab-mod-gpus .rocmlab-Card.rocmlab-mod-cpu {
  display: flex;
  flex-wrap: wrap;
  grid-column: 1 / -1;
  align-items: baseline;
  gap: 2px 24px;
  padding-top: 8px;
}

.rocmlab-mod-gpus .rocmlab-mod-cpu :is(.rocmlab-Chart-plot, .rocmlab-Card-details) {
  display: none;
}

.rocmlab-mod-gpus .rocmlab-mod-cpu .rocmlab-Card-charts {
  display: flex;
  gap: 24px;
  margin: 0;
}

/* -- table */

.rocmlab-Table {
  width: 100%;
  border-collapse: collapse;
  text-align: left;
  font-variant-numeric: tabular-nums;
}

.rocmlab-Table th,
.rocmlab-Table td {
  padding: 6px 10px 6px 0;
  font-weight: 400;
  vertical-align: middle;
}

.rocmlab-Table tr {
  border-bottom: 1px solid var(--jp-border-color2);
}

.rocmlab-Total {
  margin-top: 8px;
}

.rocmlab-Table thead th {
  color: var(--jp-ui-font-color2);
  font-size: 12px;
}

.rocmlab-Row-name {
  display: flex;
  flex-wrap: wrap;
  align-items: baseline;
  gap: 2px 8px;
}

.rocmlab-Row-text {
  font-weight: 600;
  overflow-wrap: anywhere;
}

/* One line that is cut, and, unlike one that cannot break, makes no cell wider than its table. */
.rocmlab-Row-detail {
  display: -webkit-box;
  max-width: 44ch;
  overflow: hidden;
  color: var(--jp-ui-font-color2);
  font-size: 12px;
  overflow-wrap: anywhere;
  -webkit-box-orient: vertical;
  -webkit-line-clamp: 1;
}

.rocmlab-Row-costs {
  display: block;
  color: var(--jp-ui-font-color2);
  font-size: 12px;
}

.rocmlab-Table .rocmlab-Row-actions {
  padding-right: 0;
  text-align: right;
  white-space: nowrap;
}

.rocmlab-Row-actions .rocmlab-Button + .rocmlab-Button {
  margin-left: 6px;
}

.rocmlab-Table thead th:last-child {
  padding-right: 0;
  text-align: right;
}

@container (min-width: 1000px) {
  .rocmlab-Table tbody th {
    display: flex;
    align-items: baseline;
    gap: 12px;
    min-height: 26px;
    line-height: 26px;
  }

  .rocmlab-Row-name {
    flex: 0 1 auto;
    flex-wrap: nowrap;
  }

  .rocmlab-Row-detail {
    flex: 1 1 0;
    min-width: 8ch;
  }
}

.rocmlab-Table tr.rocmlab-mod-pending td {
  color: var(--jp-ui-font-color2);
}

/* A half of the window, and less: fewer columns. */
@container (max-width: 860px) {
  .rocmlab-Table :is(th, td):nth-child(4),
  .rocmlab-Table :is(th, td):nth-child(6) {
    display: none;
  }
}

/* A sidebar: each row is a small card. */
@container (max-width: 560px) {
  .rocmlab-Card {
    padding: 10px 10px 6px;
  }

  .rocmlab-Card-charts {
    gap: 8px;
  }

  .rocmlab-Table,
  .rocmlab-Table tbody {
    display: block;
  }

  .rocmlab-Table thead {
    position: absolute;
    clip-path: inset(50%);
  }

  .rocmlab-Table tbody tr {
    display: flex;
    flex-wrap: wrap;
    gap: 2px 12px;
    padding: 8px 0;
    border-bottom: 1px solid var(--jp-border-color2);
  }

  .rocmlab-Table tbody :is(th, td) {
    padding: 0;
    border: 0;
  }

  .rocmlab-Table tbody th,
  .rocmlab-Table .rocmlab-Row-actions {
    flex: 1 0 100%;
    text-align: left;
    white-space: normal;
  }

  .rocmlab-Row-actions .rocmlab-Button {
    margin: 4px 6px 0 0 !important;
  }
}

@container (max-width: 340px) {
  .rocmlab-Row-actions .rocmlab-Button {
    margin-right: 4px !important;
    padding: 2px 6px;
  }

  .rocmlab-Card-charts {
    grid-template-columns: minmax(0, 1fr);
  }
}

/* -- cluster */

.rocmlab-Cluster .rocmlab-Head {
  margin-bottom: 8px;
}

.rocmlab-Cluster .rocmlab-Head h2 {
  margin-bottom: 0;
}

.rocmlab-Cluster > .rocmlab-Plain:not(:empty) {
  margin-bottom: 8px;
}

.rocmlab-Node {
  padding: 10px 14px;
  border: 1px solid var(--jp-border-color2);
  border-radius: 8px;
}

.rocmlab-Node.rocmlab-mod-lost {
  border-left: 3px solid var(--rocmlab-bad);
}

.rocmlab-Node-head {
  display: flex;
  flex-wrap: wrap;
  align-items: baseline;
  gap: 2px 8px;
}

.rocmlab-Panel .rocmlab-Node-name {
  font-size: 14px;
  font-weight: 600;
  overflow-wrap: anywhere;
}

.rocmlab-Node-detail,
.rocmlab-Node-running {
  color: var(--jp-ui-font-color2);
  overflow-wrap: anywhere;
}

.rocmlab-NodeTable {
  width: 100%;
  margin-top: 4px;
  border-collapse: collapse;
  table-layout: fixed;
  text-align: left;
  font-variant-numeric: tabular-nums;
}

.rocmlab-NodeTable th,
.rocmlab-NodeTable td {
  padding: 3px 10px 3px 0;
  font-weight: 400;
  vertical-align: baseline;
  overflow-wrap: anywhere;
}

.rocmlab-NodeTable thead th {
  color: var(--jp-ui-font-color2);
  font-size: 12px;
}

.rocmlab-NodeTable :is(th, td):nth-child(1) {
  width: 17%;
}

.rocmlab-NodeTable :is(th, td):nth-child(3) {
  width: 10%;
}

.rocmlab-NodeTable :is(th, td):nth-child(4) {
  width: 18%;
}

.rocmlab-Plain.rocmlab-mod-old {
  opacity: 0.7;
}

/* A sidebar: what is wide goes. */
@container (max-width: 560px) {
  .rocmlab-NodeTable :is(th, td):nth-child(2) {
    display: none;
  }

  .rocmlab-NodeTable :is(th, td):nth-child(1),
  .rocmlab-NodeTable :is(th, td):nth-child(4) {
    width: 28%;
  }

  .rocmlab-NodeTable :is(th, td):nth-child(3) {
    width: 16%;
  }
}

/* -- status bar */

.rocmlab-StatusItem {
  display: flex;
  height: 100%;
}

.rocmlab-StatusItem-button {
  padding: 0 6px;
  border: 0;
  background: none;
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  font-variant-numeric: tabular-nums;
  white-space: pre;
  cursor: pointer;
}

.rocmlab-StatusItem-button:hover {
  background: var(--jp-layout-color3);
}

.rocmlab-StatusItem-button.rocmlab-mod-old {
  color: var(--jp-ui-font-color2);
}

@media (prefers-reduced-motion: no-preference) {
  .rocmlab-mod-old .rocmlab-Cards,
  .rocmlab-mod-old .rocmlab-Table {
    transition: opacity 0.3s;
  }
}

@media (forced-colors: active) {
  .rocmlab-Status::before {
    background: CanvasText;
  }
}
`,""]),r.d(a,{},{A:n})},314(o){o.exports=function(o){var a=[];return a.toString=function(){return this.map(function(a){var r="",e=void 0!==a[5];return a[4]&&(r+="@supports (".concat(a[4],") {")),a[2]&&(r+="@media ".concat(a[2]," {")),e&&(r+="@layer".concat(a[5].length>0?" ".concat(a[5]):""," {")),r+=o(a),e&&(r+="}"),a[2]&&(r+="}"),a[4]&&(r+="}"),r}).join("")},a.i=function(o,r,e,t,l){"string"==typeof o&&(o=[[null,o,void 0]]);var n={};if(e)for(var i=0;i<this.length;i++){var c=this[i][0];null!=c&&(n[c]=!0)}for(var p=0;p<o.length;p++){var d=[].concat(o[p]);e&&n[d[0]]||(void 0!==l&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=l),r&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=r),t&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=t):d[4]="".concat(t)),a.push(d))}},a}},601(o){o.exports=function(o){return o[1]}},72(o){var a=[];function r(o){for(var r=-1,e=0;e<a.length;e++)if(a[e].identifier===o){r=e;break}return r}function e(o,e){for(var t={},l=[],n=0;n<o.length;n++){var i=o[n],c=e.base?i[0]+e.base:i[0],p=t[c]||0,d="".concat(c," ").concat(p);t[c]=p+1;var b=r(d),m={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==b)a[b].references++,a[b].updater(m);else{var s=function(o,a){var r=a.domAPI(a);return r.update(o),function(a){a?(a.css!==o.css||a.media!==o.media||a.sourceMap!==o.sourceMap||a.supports!==o.supports||a.layer!==o.layer)&&r.update(o=a):r.remove()}}(m,e);e.byIndex=n,a.splice(n,0,{identifier:d,updater:s,references:1})}l.push(d)}return l}o.exports=function(o,t){var l=e(o=o||[],t=t||{});return function(o){o=o||[];for(var n=0;n<l.length;n++){var i=r(l[n]);a[i].references--}for(var c=e(o,t),p=0;p<l.length;p++){var d=r(l[p]);0===a[d].references&&(a[d].updater(),a.splice(d,1))}l=c}}},659(o){var a={};o.exports=function(o,r){var e=function(o){if(void 0===a[o]){var r=document.querySelector(o);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(o){r=null}a[o]=r}return a[o]}(o);if(!e)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");e.appendChild(r)}},540(o){o.exports=function(o){var a=document.createElement("style");return o.setAttributes(a,o.attributes),o.insert(a,o.options),a}},56(o,a,r){o.exports=function(o){var a=r.nc;a&&o.setAttribute("nonce",a)}},825(o){o.exports=function(o){if("u"<typeof document)return{update:function(){},remove:function(){}};var a=o.insertStyleElement(o);return{update:function(r){var e,t,l;e="",r.supports&&(e+="@supports (".concat(r.supports,") {")),r.media&&(e+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(e+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),e+=r.css,t&&(e+="}"),r.media&&(e+="}"),r.supports&&(e+="}"),(l=r.sourceMap)&&"u">typeof btoa&&(e+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(l))))," */")),o.styleTagTransform(e,a,o.options)},remove:function(){var o;null===(o=a).parentNode||o.parentNode.removeChild(o)}}}},113(o){o.exports=function(o,a){if(a.styleSheet)a.styleSheet.cssText=o;else{for(;a.firstChild;)a.removeChild(a.firstChild);a.appendChild(document.createTextNode(o))}}},167(o,a,r){var e=r(72),t=r.n(e),l=r(825),n=r.n(l),i=r(659),c=r.n(i),p=r(56),d=r.n(p),b=r(540),m=r.n(b),s=r(113),u=r.n(s),f=r(757),h={};h.styleTagTransform=u(),h.setAttributes=d(),h.insert=c().bind(null,"head"),h.domAPI=n(),h.insertStyleElement=m(),t()(f.A,h),f.A&&f.A.locals&&f.A.locals;var x=r(724),g={};g.styleTagTransform=u(),g.setAttributes=d(),g.insert=c().bind(null,"head"),g.domAPI=n(),g.insertStyleElement=m(),t()(x.A,g),x.A&&x.A.locals&&x.A.locals}}]);