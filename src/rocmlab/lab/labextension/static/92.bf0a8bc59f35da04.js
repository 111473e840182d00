"use strict";(self.rspackChunkrocmlab_panel=self.rspackChunkrocmlab_panel||[]).push([[92],{757(a,o,r){var e=r(601),t=r.n(e),l=r(314),n=(r.n(l))()(t());n.push([a.id,'.uplot, .uplot *, .uplot *::before, .uplot *::after {box-sizing: border-box;}.uplot {font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji";line-height: 1.5;width: min-content;}.u-title {text-align: center;font-size: 18px;font-weight: bold;}.u-wrap {position: relative;user-select: none;}.u-over, .u-under {position: absolute;}.u-under {overflow: hidden;}.uplot canvas {display: block;position: relative;width: 100%;height: 100%;}.u-axis {position: absolute;}.u-legend {font-size: 14px;margin: auto;text-align: center;}.u-inline {display: block;}.u-inline * {display: inline-block;}.u-inline tr {margin-right: 16px;}.u-legend th {font-weight: 600;}.u-legend th > * {vertical-align: middle;display: inline-block;}.u-legend .u-marker {width: 1em;height: 1em;margin-right: 4px;background-clip: padding-box !important;}.u-inline.u-live th::after {content: ":";vertical-align: middle;}.u-inline:not(.u-live) .u-value {display: none;}.u-series > * {padding: 4px;}.u-series th {cursor: pointer;}.u-legend .u-off > * {opacity: 0.3;}.u-select {background: rgba(0,0,0,0.07);position: absolute;pointer-events: none;}.u-cursor-x, .u-cursor-y {position: absolute;left: 0;top: 0;pointer-events: none;will-change: transform;}.u-hz .u-cursor-x, .u-vt .u-cursor-y {height: 100%;border-right: 1px dashed #607D8B;}.u-hz .u-cursor-y, .u-vt .u-cursor-x {width: 100%;border-bottom: 1px dashed #607D8B;}.u-cursor-pt {position: absolute;top: 0;left: 0;border-radius: 50%;border: 0 solid;pointer-events: none;will-change: transform;/*this has to be !important since we set inline "background" shorthand */background-clip: padding-box !important;}.u-axis.u-off, .u-select.u-off, .u-cursor-x.u-off, .u-cursor-y.u-off, .u-cursor-pt.u-off {display: none;}',""]),r.d(o,{},{A:n})},724(a,o,r){var e=r(601),t=r.n(e),l=r(314),n=(r.n(l))()(t());n.push([a.id,`/* The panel in JupyterLab and on its own page. Every colour is JupyterLab's, or one of the five below. */

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

.rocmlab-Panel .rocmlab-Total {
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

/* -- the compact view in a sidebar */

.rocmlab-Panel.rocmlab-Compact {
  padding: 12px;
}

.rocmlab-Compact-devices:not(:empty) {
  margin: 10px 0 12px;
}

.rocmlab-Compact-device {
  padding: 8px 0 10px;
  border-top: 1px solid var(--jp-border-color2);
}

.rocmlab-Compact-head {
  display: flex;
  flex-wrap: wrap;
  align-items: baseline;
  justify-content: space-between;
  gap: 0 8px;
}

.rocmlab-Panel .rocmlab-Compact-head h2 {
  margin: 0;
}

.rocmlab-Compact h3 {
  font-size: 13px;
  font-weight: 600;
}

.rocmlab-Compact-heat,
.rocmlab-Meter-value {
  font-variant-numeric: tabular-nums;
}

.rocmlab-Compact-heat,
.rocmlab-Meter-name,
.rocmlab-Compact-state {
  color: var(--jp-ui-font-color2);
}

.rocmlab-Compact-chips {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
}

.rocmlab-Meter {
  display: flex;
  flex-wrap: wrap;
  justify-content: space-between;
  gap: 0 8px;
  margin-top: 2px;
}

.rocmlab-Meter-bar {
  flex: 1 0 100%;
  height: 6px;
  border-radius: 3px;
  background: var(--jp-layout-color2);
  overflow: hidden;
}

.rocmlab-Meter-bar.rocmlab-mod-unknown {
  opacity: 0.4;
}

.rocmlab-Meter-bar > div {
  height: 100%;
  background: var(--rocmlab-busy);
}

.rocmlab-Meter.rocmlab-mod-memory .rocmlab-Meter-bar > div {
  background: var(--rocmlab-memory);
}

.rocmlab-Compact-users {
  display: grid;
  gap: 2px;
  margin-top: 4px !important;
  list-style: none;
}

.rocmlab-Compact-users li {
  overflow-wrap: anywhere;
}

.rocmlab-Compact-news {
  margin: 8px 0 !important;
  color: var(--rocmlab-warn);
  font-weight: 600;
}

.rocmlab-Compact section {
  margin-bottom: 12px;
}

.rocmlab-Compact-status {
  color: var(--jp-ui-font-color2);
}

.rocmlab-Compact.rocmlab-mod-old .rocmlab-Compact-status {
  color: var(--rocmlab-bad);
  font-weight: 600;
}

.rocmlab-Compact.rocmlab-mod-old .rocmlab-Compact-devices {
  opacity: 0.55;
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

  .rocmlab-Meter-bar > div {
    background: Highlight !important;
  }
}
`,""]),r.d(o,{},{A:n})},314(a){a.exports=function(a){var o=[];return o.toString=function(){return this.map(function(o){var r="",e=void 0!==o[5];return o[4]&&(r+="@supports (".concat(o[4],") {")),o[2]&&(r+="@media ".concat(o[2]," {")),e&&(r+="@layer".concat(o[5].length>0?" ".concat(o[5]):""," {")),r+=a(o),e&&(r+="}"),o[2]&&(r+="}"),o[4]&&(r+="}"),r}).join("")},o.i=function(a,r,e,t,l){"string"==typeof a&&(a=[[null,a,void 0]]);var n={};if(e)for(var i=0;i<this.length;i++){var c=this[i][0];null!=c&&(n[c]=!0)}for(var p=0;p<a.length;p++){var m=[].concat(a[p]);e&&n[m[0]]||(void 0!==l&&(void 0===m[5]||(m[1]="@layer".concat(m[5].length>0?" ".concat(m[5]):""," {").concat(m[1],"}")),m[5]=l),r&&(m[2]&&(m[1]="@media ".concat(m[2]," {").concat(m[1],"}")),m[2]=r),t&&(m[4]?(m[1]="@supports (".concat(m[4],") {").concat(m[1],"}"),m[4]=t):m[4]="".concat(t)),o.push(m))}},o}},601(a){a.exports=function(a){return a[1]}},72(a){var o=[];function r(a){for(var r=-1,e=0;e<o.length;e++)if(o[e].identifier===a){r=e;break}return r}function e(a,e){for(var t={},l=[],n=0;n<a.length;n++){var i=a[n],c=e.base?i[0]+e.base:i[0],p=t[c]||0,m="".concat(c," ").concat(p);t[c]=p+1;var b=r(m),d={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==b)o[b].references++,o[b].updater(d);else{var s=function(a,o){var r=o.domAPI(o);return r.update(a),function(o){o?(o.css!==a.css||o.media!==a.media||o.sourceMap!==a.sourceMap||o.supports!==a.supports||o.layer!==a.layer)&&r.update(a=o):r.remove()}}(d,e);e.byIndex=n,o.splice(n,0,{identifier:m,updater:s,references:1})}l.push(m)}return l}a.exports=function(a,t){var l=e(a=a||[],t=t||{});return function(a){a=a||[];for(var n=0;n<l.length;n++){var i=r(l[n]);o[i].references--}for(var c=e(a,t),p=0;p<l.length;p++){var m=r(l[p]);0===o[m].references&&(o[m].updater(),o.splice(m,1))}l=c}}},659(a){var o={};a.exports=function(a,r){var e=function(a){if(void 0===o[a]){var r=document.querySelector(a);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(a){r=null}o[a]=r}return o[a]}(a);if(!e)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");e.appendChild(r)}},540(a){a.exports=function(a){var o=document.createElement("style");return a.setAttributes(o,a.attributes),a.insert(o,a.options),o}},56(a,o,r){a.exports=function(a){var o=r.nc;o&&a.setAttribute("nonce",o)}},825(a){a.exports=function(a){if("u"<typeof document)return{update:function(){},remove:function(){}};var o=a.insertStyleElement(a);return{update:function(r){var e,t,l;e="",r.supports&&(e+="@supports (".concat(r.supports,") {")),r.media&&(e+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(e+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),e+=r.css,t&&(e+="}"),r.media&&(e+="}"),r.supports&&(e+="}"),(l=r.sourceMap)&&"u">typeof btoa&&(e+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(l))))," */")),a.styleTagTransform(e,o,a.options)},remove:function(){var a;null===(a=o).parentNode||a.parentNode.removeChild(a)}}}},113(a){a.exports=function(a,o){if(o.styleSheet)o.styleSheet.cssText=a;else{for(;o.firstChild;)o.removeChild(o.firstChild);o.appendChild(document.createTextNode(a))}}},167(a,o,r){var e=r(72),t=r.n(e),l=r(825),n=r.n(l),i=r(659),c=r.n(i),p=r(56),m=r.n(p),b=r(540),d=r.n(b),s=r(113),u=r.n(s),f=r(757),h={};h.styleTagTransform=u(),h.setAttributes=m(),h.insert=c().bind(null,"head"),h.domAPI=n(),h.insertStyleElement=d(),t()(f.A,h),f.A&&f.A.locals&&f.A.locals;var x=r(724),g={};g.styleTagTransform=u(),g.setAttributes=m(),g.insert=c().bind(null,"head"),g.domAPI=n(),g.insertStyleElement=d(),t()(x.A,g),x.A&&x.A.locals&&x.A.locals}}]);