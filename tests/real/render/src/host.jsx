// The parts of the Grafana application shell that its npm packages expect to find already set.
import { of, from, map, catchError, EMPTY, Observable } from 'rxjs';
import * as D from '@grafana/data';
import * as R from '@grafana/runtime';
import { sceneGraph } from '@grafana/scenes';
import { initPluginTranslations } from '@grafana/i18n';
import { PrometheusDatasource } from '@grafana/prometheus';
import { answerDsQuery } from './prom-backend.js';

export const PROM = '/prom';
export const SCRAPE = window.__RENDER__.scrapeInterval || '15s';
const noEditor = () => null;

export const dsSettings = {
  id: 1,
  uid: window.__RENDER__.dsUid || 'prometheus',
  name: window.__RENDER__.dsName || 'Prometheus',
  type: 'prometheus',
  access: 'proxy',
  isDefault: true,
  readOnly: false,
  url: PROM,
  jsonData: {
    timeInterval: SCRAPE,
    httpMethod: 'POST',
    prometheusType: 'Prometheus',
    prometheusVersion: '2.42.0',
    disableRecordingRules: true,
  },
  meta: {
    id: 'prometheus',
    name: 'Prometheus',
    type: 'datasource',
    metrics: true,
    annotations: true,
    module: '',
    baseUrl: '',
    info: { logos: { small: '', large: '' }, version: '' },
  },
};

export async function initHost() {
  await initPluginTranslations('grafana', []);
  await initPluginTranslations('grafana-scenes', []);
  R.setAppEvents(new D.EventBusSrv());
  R.setEchoSrv({ addEvent() {}, addBackend() {}, flush() {} });
  R.setGrafanaLiveSrv?.({ getStream: () => EMPTY, getConnectionState: () => EMPTY });

  // ---- back end calls --------------------------------------------------------------------------
  const doFetch = async (o) => {
    const u = new URL(o.url, location.origin);
    if (u.pathname === '/api/ds/query')
      return { data: await answerDsQuery(o.data, PROM, SCRAPE), status: 200, ok: true };
    const m = u.pathname.match(/^\/api\/datasources\/(?:uid\/)?[^/]+\/resources\/(.*)$/);
    if (m) {
      const p = new URLSearchParams();
      for (const [k, v] of [...u.searchParams, ...Object.entries({ ...(o.params || {}), ...(o.data || {}) })])
        for (const x of [].concat(v)) p.append(k, x);
      const get = (o.method || 'GET') === 'GET';
      const res = await fetch(`${PROM}/${m[1]}${get ? '?' + p : ''}`, get ? {} : { method: 'POST', body: p });
      const data = await res.json();
      if (!res.ok) throw { status: res.status, statusText: res.statusText, data };
      return { data, status: res.status, ok: true };
    }
    window.__RENDER__.unknownCalls.push(`${o.method || 'GET'} ${o.url}`);
    throw { status: 404, statusText: 'harness has no ' + o.url, data: {} };
  };
  const fetchObs = (o) => from(doFetch(o));
  const req = (method) => (url, data, opts) =>
    doFetch({ url, method, ...(method === 'GET' ? { params: data } : { data }), ...opts }).then(
      (r) => r.data,
    );
  R.setBackendSrv({
    fetch: fetchObs,
    datasourceRequest: doFetch,
    request: (o) => doFetch(o).then((r) => r.data),
    get: req('GET'),
    post: req('POST'),
    put: req('PUT'),
    patch: req('PATCH'),
    delete: req('DELETE'),
    chunked: () => EMPTY,
    resolveCancelerIfExists() {},
  });

  // ---- templating for the data source's own interpolation ---------------------------------------
  R.setTemplateSrv({
    replace: (t, vars, fmt) =>
      t == null
        ? (t ?? '')
        : window.__grafanaSceneContext
          ? sceneGraph.interpolate(window.__grafanaSceneContext, t, vars, fmt)
          : t,
    getVariables: () =>
      (window.__grafanaSceneContext?.state.$variables?.state.variables ?? []).map((v) => v.state),
    containsTemplate: (s) => /\$\w|\$\{|\[\[/.test(s || ''),
    updateTimeRange() {},
    getAdhocFilters: () => [],
  });

  // ---- data sources ----------------------------------------------------------------------------
  let ds;
  const refOk = (uid) => uid == null || [dsSettings.uid, dsSettings.name, 'default', ''].includes(uid);
  const resolve = (ref, sv) => {
    let uid = typeof ref === 'string' ? ref : ref?.uid;
    if (uid && /\$/.test(uid))
      uid = R.getTemplateSrv().replace(uid, sv, (v) => (Array.isArray(v) ? v[0] : v));
    return uid;
  };
  const settingsFor = (ref, sv) => {
    const uid = resolve(ref, sv);
    return refOk(uid) ? { ...dsSettings, rawRef: { type: 'prometheus', uid: dsSettings.uid } } : undefined;
  };
  R.setDataSourceSrv({
    get: async (ref, sv) => {
      const uid = resolve(ref, sv);
      if (!refOk(uid)) {
        const e = new Error(`Datasource ${uid} was not found`);
        window.__RENDER__.problems.push(e.message);
        throw e;
      }
      return (ds ??= new PrometheusDatasource({ ...dsSettings }));
    },
    getList: (f) =>
      f?.pluginId && f.pluginId !== 'prometheus'
        ? []
        : f?.type && ![].concat(f.type).includes('prometheus')
          ? []
          : [dsSettings],
    getInstanceSettings: settingsFor,
    reload: async () => {},
    registerRuntimeDataSource() {},
  });

  // ---- query execution -------------------------------------------------------------------------
  R.setRunRequest(
    (datasource, request, queryFn) =>
      new Observable((sub) => {
        sub.next({ state: D.LoadingState.Loading, series: [], request, timeRange: request.range });
        const s = from(queryFn ? queryFn(request) : datasource.query(request)).subscribe({
          next: (p) => {
            const isAnno = (f) => f.meta?.dataTopic === D.DataTopic.Annotations;
            const err = p.error ?? p.errors?.[0];
            sub.next({
              state: err ? D.LoadingState.Error : (p.state ?? D.LoadingState.Done),
              series: p.data.filter((f) => !isAnno(f)).map((f) => (queryFn ? f : D.toDataFrame(f))),
              annotations: p.data.filter(isAnno),
              error: err,
              errors: err ? [err] : undefined,
              request,
              timeRange: request.range,
            });
          },
          error: (e) => {
            sub.next({
              state: D.LoadingState.Error,
              series: [],
              error: R.toDataQueryError(e),
              errors: [R.toDataQueryError(e)],
              request,
              timeRange: request.range,
            });
            sub.complete();
          },
          complete: () => sub.complete(),
        });
        return () => s.unsubscribe();
      }),
  );

  // ---- standard field options (the application registers these with editors; ids, paths and processing matter here)
  const std = [
    ['unit', D.unitOverrideProcessor],
    ['min', D.numberOverrideProcessor],
    ['max', D.numberOverrideProcessor],
    ['decimals', D.numberOverrideProcessor],
    ['fieldMinMax', D.booleanOverrideProcessor],
    ['displayName', D.displayNameOverrideProcessor],
    ['noValue', D.stringOverrideProcessor],
    ['color', D.identityOverrideProcessor],
    ['links', D.dataLinksOverrideProcessor],
    ['actions', D.identityOverrideProcessor],
    ['mappings', D.valueMappingsOverrideProcessor],
    ['thresholds', D.thresholdsOverrideProcessor],
    ['filterable', D.booleanOverrideProcessor],
  ];
  const dflt = {
    mappings: [],
    thresholds: {
      mode: 'absolute',
      steps: [
        { value: -Infinity, color: 'green' },
        { value: 80, color: 'red' },
      ],
    },
    color: { mode: 'thresholds' },
  };
  D.standardFieldConfigEditorRegistry.setInit(() =>
    std.map(([id, process]) => ({
      id,
      path: id,
      name: id,
      description: id,
      category: ['Standard options'],
      editor: noEditor,
      override: noEditor,
      process,
      settings: {},
      shouldApply: (f) =>
        id === 'links' ||
        id === 'displayName' ||
        id === 'noValue' ||
        id === 'color' ||
        id === 'mappings' ||
        id === 'unit' ||
        id === 'thresholds' ||
        f.type === D.FieldType.number,
      defaultValue: dflt[id],
      isCustom: false,
      getItemsCount: () => 0,
    })),
  );
  D.standardEditorsRegistry.setInit(() =>
    [
      'text',
      'number',
      'slider',
      'boolean',
      'select',
      'radio',
      'multi-select',
      'unit',
      'color',
      'fieldColor',
      'links',
      'mappings',
      'thresholds',
      'stats-picker',
      'strings',
      'timezone',
      'field-name',
      'dashboard-uid',
      'series-filter',
      'actions',
    ].map((id) => ({ id, name: id, editor: noEditor })),
  );
  D.standardTransformersRegistry.setInit(() =>
    [...new Map(Object.values(D.standardTransformers).map((t) => [t.id, t])).values()].map((t) => ({
      id: t.id,
      name: t.name,
      description: t.description,
      transformation: () => Promise.resolve(t),
      defaultOptions: t.defaultOptions,
      editor: noEditor,
      imageDark: '',
      imageLight: '',
    })),
  );

  for (const h of [
    'setPluginLinksHook',
    'setPluginComponentsHook',
    'setPluginFunctionsHook',
    'setPluginComponentHook',
  ])
    R[h]?.(() => ({ links: [], components: [], functions: [], component: null, isLoading: false }));
}
