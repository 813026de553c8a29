import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import * as D from '@grafana/data';
import * as R from '@grafana/runtime';
import * as S from '@grafana/scenes';
import { ThemeContext, GlobalStyles, PortalContainer } from '@grafana/ui';
import { initHost, dsSettings } from './host.jsx';
import { plugins, pluginFor } from './panels.jsx';
import { executed } from './prom-backend.js';

const L = window.__RENDER__;
const dsRef = (d) => (d == null ? undefined : typeof d === 'string' ? { uid: d } : d);

function variable(v) {
  const chosen = L.choose[v.name];
  const base = {
    name: v.name,
    label: v.label || undefined,
    description: v.description,
    hide: v.hide ?? 0,
    skipUrlSync: v.skipUrlSync,
  };
  const multi = {
    isMulti: v.multi,
    includeAll: v.includeAll,
    allValue: v.allValue || undefined,
    value: chosen ?? v.current?.value ?? '',
    text: chosen ?? v.current?.text ?? '',
    defaultToAll: !!v.includeAll && chosen == null,
  };
  switch (v.type) {
    case 'datasource':
      return new S.DataSourceVariable({
        ...base,
        ...multi,
        pluginId: v.query,
        regex: v.regex || '',
        value: L.dsUid || 'prometheus',
        text: dsSettings.name,
      });
    case 'query':
      return new S.QueryVariable({
        ...base,
        ...multi,
        query: v.query,
        datasource: dsRef(v.datasource),
        regex: v.regex || '',
        sort: v.sort,
        refresh: v.refresh,
        definition: v.definition,
      });
    // a value that is none of the choices would be put back to the first
    case 'custom':
      return new S.CustomVariable({
        ...base,
        ...multi,
        query: chosen == null || v.query.split(',').includes(chosen) ? v.query : `${v.query},${chosen}`,
      });
    case 'interval':
      return new S.IntervalVariable({
        ...base,
        value: v.current?.value ?? '',
        intervals: (v.query || '')
          .split(',')
          .map((s) => s.trim())
          .filter((s) => !s.startsWith('$__auto')),
        autoEnabled: v.auto,
        autoStepCount: v.auto_count,
        autoMinInterval: v.auto_min,
      });
    case 'constant':
      return new S.ConstantVariable({ ...base, value: v.query, hide: 2 });
    case 'textbox':
      return new S.TextBoxVariable({ ...base, value: v.current?.value ?? v.query });
    case 'adhoc':
      return new S.AdHocFiltersVariable({
        ...base,
        datasource: dsRef(v.datasource),
        filters: v.filters ?? [],
        applyMode: 'auto',
      });
    default:
      L.problems.push(`variable ${v.name}: type ${v.type} is not supported by this harness`);
      return null;
  }
}
const panelsById = new Map();
const folded = new Set(); // panels of collapsed rows, which are not drawn
const isFolded = (json) => folded.has(json.id);
const domOf = (json) => document.querySelector(`[data-viz-panel-key="panel-${json.id}"]`);
function viz(p) {
  for (const k of ['repeat', 'timeFrom', 'timeShift', 'libraryPanel'])
    if (p[k]) L.problems.push(`panel ${p.id} "${p.title}": "${k}" is not reproduced by this harness`);
  const targets = (p.targets || []).filter((t) => !t.hide);
  for (const t of targets)
    if (t.exemplar)
      L.notes.push(
        `panel ${p.id} "${p.title}": exemplars of target ${t.refId} are not drawn by this harness`,
      );
  for (const t of p.transformations || [])
    if (!D.standardTransformersRegistry.getIfExists(t.id))
      L.problems.push(`panel ${p.id} "${p.title}": transformation "${t.id}" is not in @grafana/data`);
  for (const o of p.fieldConfig?.overrides || []) {
    if (!D.fieldMatchers.getIfExists(o.matcher?.id))
      L.problems.push(`panel ${p.id} "${p.title}": unknown override matcher "${o.matcher?.id}"`);
    for (const pr of o.properties || [])
      if (!pluginFor(p.type).fieldConfigRegistry.getIfExists(pr.id))
        L.problems.push(
          `panel ${p.id} "${p.title}": override property "${pr.id}" is unknown and Grafana would ignore it`,
        );
  }
  const harness = pluginFor(p.type).harness;
  for (const k of Object.keys(p.options || {}))
    if (harness.level !== 'unsupported' && !harness.optionKeys.includes(k))
      L.problems.push(`panel ${p.id} "${p.title}": option "${k}" is not one of ${p.type}'s`);
  for (const k of Object.keys(p.fieldConfig?.defaults?.custom || {}))
    if (harness.level !== 'unsupported' && !harness.customKeys.includes(k))
      L.problems.push(
        `panel ${p.id} "${p.title}": fieldConfig.defaults.custom "${k}" is not one of ${p.type}'s`,
      );
  const unit = p.fieldConfig?.defaults?.unit;
  if (
    unit &&
    !D.getValueFormats().some((c) => c.submenu.some((u) => u.value === unit)) &&
    !/^(suffix|prefix|time|si|count|currency|bool):/.test(unit)
  )
    L.problems.push(
      `panel ${p.id} "${p.title}": unit "${unit}" is not a Grafana unit id (it would be shown as a suffix)`,
    );
  const runner = new S.SceneQueryRunner({
    datasource: dsRef(p.datasource),
    queries: targets,
    maxDataPoints: p.maxDataPoints ?? undefined,
    minInterval: p.interval || undefined,
    maxDataPointsFromWidth: p.maxDataPoints == null,
    runQueriesMode: 'auto',
  });
  const $data = targets.length
    ? new S.SceneDataTransformer({ $data: runner, transformations: p.transformations || [] })
    : undefined;
  const vp = new S.VizPanel({
    key: `panel-${p.id}`,
    title: p.title || '',
    description: p.description,
    pluginId: p.type,
    options: p.options || {},
    fieldConfig: p.fieldConfig || { defaults: {}, overrides: [] },
    pluginVersion: '13.2.2',
    displayMode: p.transparent ? 'transparent' : undefined,
    hoverHeader: !p.title,
    $data,
    seriesLimit: undefined,
  });
  panelsById.set(p.id, { json: p, vp });
  return vp;
}
const item = (p) =>
  new S.SceneGridItem({
    key: `grid-item-${p.id}`,
    x: p.gridPos.x,
    y: p.gridPos.y,
    width: p.gridPos.w,
    height: p.gridPos.h,
    isDraggable: false,
    isResizable: false,
    body: viz(p),
  });
function layout(panels) {
  const top = [];
  let row = null,
    kids = [];
  const close = () => {
    if (row) {
      top.push(
        new S.SceneGridRow({
          title: row.title,
          isCollapsed: false,
          y: row.gridPos.y,
          key: `row-${row.id}`,
          children: kids.map(item),
          isDraggable: false,
        }),
      );
    }
    row = null;
    kids = [];
  };
  for (const p of [...panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    if (p.type === 'row') {
      close();
      row = p;
      if (p.collapsed) {
        if (!L.expandRows) (p.panels || []).forEach((x) => folded.add(x.id));
        top.push(
          new S.SceneGridRow({
            title: p.title,
            isCollapsed: !L.expandRows,
            y: p.gridPos.y,
            key: `row-${p.id}`,
            children: (p.panels || []).map(item),
          }),
        );
        row = null;
      }
    } else (row ? kids : top).push(row ? p : item(p));
  }
  close();
  return top;
}
function flow(fs) {
  // texts of a value field as Grafana would print them
  const out = [];
  for (const f of fs)
    for (const x of f.fields) {
      if (x.type === D.FieldType.time) continue;
      const name = D.getFieldDisplayName(x, f, fs);
      const last = [...x.values].reverse().find((v) => v != null);
      out.push({
        name,
        type: x.type,
        n: x.values.length,
        last,
        shown: last == null || !x.display ? null : D.formattedValueToString(x.display(last)),
        unit: x.config.unit,
        color: x.display && last != null ? x.display(last).color : undefined,
      });
    }
  return out;
}
async function main() {
  await initHost();
  R.setPluginImportUtils({
    importPanelPlugin: async (id) => pluginFor(id),
    getPanelPluginFromCache: (id) => pluginFor(id),
  });
  const d = L.dashboard;
  for (const an of d.annotations?.list || [])
    if (!an.builtIn && an.enable !== false)
      L.notes.push(`annotation "${an.name}" is not drawn by this harness`);
  const from = L.from || d.time?.from || 'now-1h',
    to = L.to || d.time?.to || 'now';
  const variables = (d.templating?.list || []).map(variable).filter(Boolean);
  const scene = new S.EmbeddedScene({
    $timeRange: new S.SceneTimeRange({
      from,
      to,
      timeZone: L.tz || (d.timezone === 'browser' ? '' : d.timezone) || 'utc',
    }),
    $variables: new S.SceneVariableSet({ variables }),
    controls: [
      new S.VariableValueSelectors({}),
      new S.SceneControlsSpacer(),
      new S.SceneTimePicker({}),
      new S.SceneRefreshPicker({ refresh: '' }),
    ],
    body: new S.SceneGridLayout({ isLazy: false, children: layout(d.panels || []) }),
  });
  window.__grafanaSceneContext = scene;
  scene.activate();
  const theme = R.config.theme2;
  const styles = document.createElement('style');
  styles.textContent =
    'html,body{height:auto!important;overflow:visible!important;position:static!important} #root{display:block!important;padding:16px;box-sizing:border-box;height:auto!important}';
  document.head.appendChild(styles);
  createRoot(document.getElementById('root')).render(
    <MemoryRouter>
      <ThemeContext.Provider value={theme}>
        <GlobalStyles hackNoBackdropBlur isExtensionSidebarOpen={false} />
        <div style={{ fontSize: 18, fontWeight: 500, marginBottom: 8 }}>{d.title}</div>
        <scene.Component model={scene} />
        <PortalContainer />
      </ThemeContext.Provider>
    </MemoryRouter>,
  );
  const t0 = Date.now();
  // Data that came are not yet on the screen of a busy machine: what was drawn must be there too.
  const isDrawn = (json, data) => {
    const dom = domOf(json);
    if (!dom) return false;
    if (data?.state === 'Error' || dom.querySelector('[data-render-nodata], [data-render-unsupported]'))
      return true;
    switch (json.type) {
      case 'timeseries':
      case 'heatmap':
        return [...dom.querySelectorAll('canvas')].some((canvas) => canvas.width > 0 && canvas.height > 0);
      case 'table':
        return !!dom.querySelector('[role="gridcell"]');
      case 'text':
        return !!dom.querySelector('.markdown-html');
      default:
        return dom.innerText.trim().length > (json.title || '').length;
    }
  };
  const settled = () =>
    [...panelsById.values()].every(({ vp, json }) => {
      if (!vp.isActive) return isFolded(json);
      if (!vp.state.$data) return !!vp.getPlugin() && isDrawn(json);
      const data = vp.state.$data.state.data;
      return (data?.state === 'Done' || data?.state === 'Error') && isDrawn(json, data);
    }) && variables.every((v) => !v.state.loading);
  let quiet = 0;
  const tick = () => {
    quiet = settled() && Date.now() - t0 > 800 ? quiet + 1 : 0;
    if (quiet < 5 && Date.now() - t0 < 60000) return setTimeout(tick, 200);
    L.report = {
      title: d.title,
      timeRange: {
        from: scene.state.$timeRange.state.value.from.toISOString(),
        to: scene.state.$timeRange.state.value.to.toISOString(),
      },
      timedOut: quiet < 5,
      variables: variables.map((v) => ({
        name: v.state.name,
        type: v.state.type,
        value: v.getValue(),
        options: v.state.options?.length,
        error: v.state.error ? String(v.state.error.message ?? v.state.error) : undefined,
      })),
      panels: [...panelsById.values()].map(({ vp, json }) => {
        const data = vp.state.$data?.state.data;
        const dom = domOf(json);
        const shown = data ? flow(vp.applyFieldConfig(data).series) : [];
        return {
          id: json.id,
          title: vp.interpolate(json.title || '', undefined, 'text'),
          type: json.type,
          drawnBy: pluginFor(json.type).harness.level,
          folded: isFolded(json),
          active: vp.isActive,
          state: data?.state,
          error: data?.errors?.map((e) => e.message).join('; ') || vp.state._pluginLoadError,
          series: data?.series.length ?? null,
          points: data?.series.reduce((a, f) => a + f.length, 0) ?? null,
          noData: !!dom && (!!dom.querySelector('[data-render-nodata]') || (data && !shown.length)),
          crashed: !!dom?.querySelector('[data-testid="data-testid Alert error"], [class*="alert-error"]'),
          blank: !isFolded(json) && !isDrawn(json, data),
          canvases: dom?.querySelectorAll('canvas').length,
          text: dom?.innerText?.replace(/\s+/g, ' ').slice(0, 400),
          values: shown.slice(0, 40),
        };
      }),
      queries: executed,
      problems: L.problems,
      notes: L.notes,
      unknownCalls: L.unknownCalls,
    };
    L.height = document.getElementById('root').scrollHeight;
    L.done = true;
  };
  tick();
}
main().catch((e) => {
  console.error(e);
  L.fatal = String(e.stack || e);
  L.done = true;
});
