// Panel plugins for this harness: the drawing components are Grafana's own (@grafana/ui), the option and
// field-option lists follow @grafana/schema; the heatmap's cells are drawn here because no npm package has them.
import React, { useMemo } from 'react';
import * as D from '@grafana/data';
import {
  BigValue,
  BarGauge,
  VizRepeater,
  TimeSeries,
  TooltipPlugin2,
  useTheme2,
  UPlotChart,
  UPlotConfigBuilder,
  VizLayout,
  PanelContextRoot,
} from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import * as chroma from 'd3-scale-chromatic';
import * as statCfg from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import * as barCfg from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import * as tableCfg from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import * as heatCfg from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';

// As Grafana's PanelDataErrorView: the field option "No value" in place of "No data"
const NoData = ({ fieldConfig }) => (
  <div
    data-render-nodata
    style={{
      display: 'flex',
      alignItems: 'center',
      justifyContent: 'center',
      height: '100%',
      padding: '0 12px',
      textAlign: 'center',
      fontSize: 16,
      opacity: 0.7,
    }}
  >
    {fieldConfig?.defaults?.noValue || 'No data'}
  </div>
);
const singleStat = {
  reduceOptions: { values: false, calcs: ['lastNotNull'], fields: '' },
  orientation: 'auto',
};

// options: defaults object, flattened to the registrations a plugin makes
function addOptions(builder, defaults) {
  for (const [k, v] of Object.entries(defaults))
    builder.addCustomEditor({ id: k, path: k, name: k, editor: () => null, defaultValue: v });
}
function addFields(builder, defaults, all) {
  for (const [k, v] of Object.entries(defaults))
    builder.addCustomEditor({
      id: k,
      path: k,
      name: k,
      editor: () => null,
      override: () => null,
      process: D.identityOverrideProcessor,
      shouldApply: (f) => all || f.type !== D.FieldType.time,
      defaultValue: v,
    });
}
const META = (id) => ({
  id,
  name: id,
  type: D.PluginType.panel,
  info: { version: '13.2.2', logos: { small: '', large: '' } },
  module: '',
  baseUrl: '',
  hideFromList: false,
  sort: 1,
});
function make(id, comp, { options = {}, custom, standardOptions, skipDataQuery, noPadding, level }) {
  const p = new D.PanelPlugin(comp);
  p.meta = { ...META(id), skipDataQuery: !!skipDataQuery };
  p.setPanelOptions((b) => addOptions(b, options));
  p.useFieldConfig({
    standardOptions,
    useCustomConfig: custom && ((b) => addFields(b, custom, id === 'table')),
  });
  if (noPadding) p.setNoPadding();
  p.harness = { level, optionKeys: Object.keys(options), customKeys: Object.keys(custom || {}) };
  return p;
}

// ---------------------------------------------------------------- time series
const graphCustom = {
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: 'none',
  lineStyle: undefined,
  spanNulls: false,
  insertNulls: false,
  showPoints: 'auto',
  showValues: false,
  pointSize: 5,
  pointSymbol: undefined,
  barAlignment: 0,
  barMaxWidth: undefined,
  barWidthFactor: 0.6,
  stacking: { mode: 'none', group: 'A' },
  axisPlacement: 'auto',
  axisLabel: '',
  axisWidth: undefined,
  axisSoftMin: undefined,
  axisSoftMax: undefined,
  axisGridShow: undefined,
  axisCenteredZero: false,
  axisBorderShow: false,
  axisColorMode: 'text',
  scaleDistribution: { type: 'linear' },
  hideFrom: { tooltip: false, viz: false, legend: false },
  thresholdsStyle: { mode: 'off' },
  transform: undefined,
  fillBelowTo: undefined,
  lineColor: undefined,
  fillColor: undefined,
  pointColor: undefined,
};
function TimeSeriesPanel({
  data,
  timeRange,
  timeZone,
  width,
  height,
  options,
  replaceVariables,
  fieldConfig,
}) {
  // As the real panel prepares its frames: what is no finite number is a gap
  const frames = useMemo(
    () =>
      data.series
        .filter(
          (f) =>
            f.fields.some((x) => x.type === D.FieldType.time) &&
            f.fields.some((x) => x.type === D.FieldType.number && x.values.length),
        )
        .map((f) => ({
          ...f,
          fields: f.fields.map((x) =>
            x.type === D.FieldType.number && x.values.some((v) => v != null && !Number.isFinite(v))
              ? { ...x, values: x.values.map((v) => (Number.isFinite(v) ? v : null)) }
              : x,
          ),
        })),
    [data.series],
  );
  if (!frames.length) return <NoData fieldConfig={fieldConfig} />;
  return (
    <TimeSeries
      frames={frames}
      structureRev={data.structureRev}
      timeRange={timeRange}
      timeZone={[timeZone]}
      width={width}
      height={height}
      legend={options.legend}
      options={options}
      replaceVariables={replaceVariables}
    >
      {() => null}
    </TimeSeries>
  );
}
// ---------------------------------------------------------------- stat / bar gauge
const displayValues = (props, theme, extra) =>
  D.getFieldDisplayValues({
    fieldConfig: props.fieldConfig,
    reduceOptions: props.options.reduceOptions,
    replaceVariables: props.replaceVariables,
    theme,
    data: props.data.series,
    timeZone: props.timeZone,
    ...extra,
  });
function StatPanel(props) {
  const theme = useTheme2();
  const { options: o, width, height, data, timeRange, renderCounter } = props;
  const render = (v) => (
    <BigValue
      value={v.value.display}
      count={v.count}
      sparkline={v.value.sparkline}
      colorMode={o.colorMode}
      graphMode={o.graphMode}
      justifyMode={o.justifyMode}
      textMode={textMode(o, data)}
      alignmentFactors={v.alignmentFactors}
      text={o.text}
      width={v.width}
      height={v.height}
      theme={theme}
      wideLayout={o.wideLayout}
      percentChange={v.value.display.percentChange}
      percentChangeColorMode={o.percentChangeColorMode}
    />
  );
  return (
    <VizRepeater
      getValues={() =>
        displayValues(props, theme, { sparkline: o.graphMode !== 'none', percentChange: o.showPercentChange })
      }
      getAlignmentFactors={D.getDisplayValueAlignmentFactors}
      renderValue={render}
      width={width}
      height={height}
      source={data}
      itemSpacing={3}
      renderCounter={renderCounter}
      autoGrid
      orientation={o.orientation}
    />
  );
}
// "auto" shows the name only when there is more than one value
const textMode = (o, data) => {
  if (o.textMode && o.textMode !== 'auto') return o.textMode;
  const n = data.series.reduce((a, f) => a + f.fields.filter((x) => x.type === D.FieldType.number).length, 0);
  return n > 1 || o.reduceOptions?.values ? 'value_and_name' : 'value';
};
function BarGaugePanel(props) {
  const theme = useTheme2();
  const { options: o, width, height, data, renderCounter } = props;
  const orientation = o.orientation === 'auto' ? (width > height ? 'vertical' : 'horizontal') : o.orientation;
  const render = (v) => {
    const { field, display, view, colIndex } = v.value;
    const f = view && colIndex != null ? view.dataFrame.fields[colIndex] : undefined;
    return (
      <BarGauge
        value={v.count > 1 || field.displayName ? display : { ...display, title: undefined }}
        width={v.width}
        height={v.height}
        orientation={v.orientation}
        field={field}
        text={o.text}
        display={f?.display ?? view?.getFieldDisplayProcessor?.(colIndex)}
        theme={theme}
        itemSpacing={10}
        displayMode={o.displayMode}
        alignmentFactors={v.alignmentFactors}
        showUnfilled={o.showUnfilled}
        valueDisplayMode={o.valueMode}
        namePlacement={o.namePlacement}
        lcdCellWidth={12}
      />
    );
  };
  return (
    <VizRepeater
      source={data}
      getAlignmentFactors={D.getDisplayValueAlignmentFactors}
      getValues={() => displayValues(props, theme)}
      renderValue={render}
      renderCounter={renderCounter}
      width={width}
      height={height}
      minVizWidth={o.minVizWidth}
      minVizHeight={o.minVizHeight}
      maxVizHeight={o.maxVizHeight}
      itemSpacing={10}
      orientation={orientation}
    />
  );
}
// ---------------------------------------------------------------- table
function TablePanel({ data, width, height, options: o, fieldConfig, timeRange }) {
  D.cacheFieldDisplayNames(data.series); // the table reads names (renames from "organize", displayName overrides) from this cache
  const frame = data.series[o.frameIndex || 0];
  if (!frame?.length) return <NoData fieldConfig={fieldConfig} />;
  return (
    <TableNG
      data={frame}
      width={width}
      height={height}
      noHeader={!o.showHeader}
      showTypeIcons={o.showTypeIcons}
      resizable={false}
      sortBy={o.sortBy}
      cellHeight={o.cellHeight}
      enablePagination={o.enablePagination}
      fieldConfig={fieldConfig}
      timeRange={timeRange}
      structureRev={data.structureRev}
      enableVirtualization={false}
      initialRowIndex={undefined}
      getActions={() => []}
    />
  );
}
// ---------------------------------------------------------------- text
const TextPanel = ({ options: o, replaceVariables }) => (
  <div
    className="markdown-html"
    style={{ padding: 4 }}
    dangerouslySetInnerHTML={{
      __html:
        o.mode === 'html'
          ? D.textUtil.sanitize(replaceVariables(o.content || ''))
          : D.renderTextPanelMarkdown(replaceVariables(o.content || '')),
    }}
  />
);
// ---------------------------------------------------------------- heatmap (rows of bucket counts over time)
function HeatmapPanel({ data, timeRange, timeZone, width, height, options: o, fieldConfig }) {
  const theme = useTheme2();
  const info = useMemo(() => {
    const f = data.series.find(
      (x) => x.fields[0]?.type === D.FieldType.time && x.fields.some((y) => y.type === D.FieldType.number),
    );
    if (!f) return null;
    // one field per bucket in one frame (format: heatmap), or one frame per bucket (format: time_series)
    const rows =
      data.series.length > 1
        ? data.series.map((s) => s.fields.find((x) => x.type === D.FieldType.number)).filter(Boolean)
        : f.fields.slice(1).filter((x) => x.type === D.FieldType.number);
    const time = f.fields[0].values;
    let max = 0;
    rows.forEach((r) =>
      r.values.forEach((v) => {
        if (v > max) max = v;
      }),
    );
    return {
      rows,
      time,
      max,
      names: rows.map((r) => D.getFieldDisplayName(r, f, data.series)),
      step: f.fields[0].config.interval || time[1] - time[0],
    };
  }, [data]);
  if (!info || !info.max) return <NoData fieldConfig={fieldConfig} />;
  const scheme = chroma[`interpolate${o.color?.scheme || 'Oranges'}`] || chroma.interpolateOranges;
  const steps = o.color?.steps ?? 64,
    exp = o.color?.exponent ?? 0.5,
    min = o.color?.min ?? 0,
    max = o.color?.max ?? info.max;
  const colorOf = (v) => {
    let t = Math.min(1, Math.max(0, (v - min) / (max - min)));
    t = Math.pow(t, o.color?.scale === 'linear' ? 1 : exp);
    t = Math.round(t * (steps - 1)) / (steps - 1);
    const dark = theme.isDark !== !!o.color?.reverse;
    return scheme(dark ? 1 - t : t);
  };
  const unit = o.yAxis?.unit || fieldConfig.defaults.unit || 'short';
  const fmt = D.getValueFormat(unit);
  const label = (n) =>
    n === '+Inf' || n === 'Infinity' || n === '∞'
      ? '+Inf'
      : isNaN(Number(n))
        ? n
        : D.formattedValueToString(fmt(Number(n), o.yAxis?.decimals));
  const legendH = o.legend?.show === false ? 0 : 26;
  // A label needs some 16 pixels
  const every = Math.max(1, Math.ceil((info.rows.length * 16) / Math.max(60, height - legendH - 40)));
  const b = useMemo(() => {
    const c = new UPlotConfigBuilder(timeZone);
    c.addScale({
      scaleKey: 'x',
      isTime: true,
      orientation: 0,
      direction: 1,
      range: () => [timeRange.from.valueOf(), timeRange.to.valueOf()],
    });
    c.addScale({
      scaleKey: 'y',
      isTime: false,
      orientation: 1,
      direction: 1,
      range: () => [0, info.rows.length],
    });
    c.addAxis({ scaleKey: 'x', isTime: true, placement: 'bottom', theme, timeZone, grid: { show: false } });
    c.addAxis({
      scaleKey: 'y',
      placement: 'left',
      theme,
      grid: { show: false },
      splits: () => info.rows.map((_, i) => i + 1).filter((i) => i % every === 0),
      formatValue: (v) => label(info.names[Math.round(v) - 1] ?? ''),
      size: 70,
      label: o.yAxis?.axisLabel,
    });
    c.addSeries({
      scaleKey: 'y',
      theme,
      pathBuilder: () => null,
      pointsBuilder: () => false,
      show: true,
      facets: undefined,
    });
    c.addHook('draw', (u) => {
      const { ctx } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      ctx.clip();
      info.rows.forEach((r, y) =>
        info.time.forEach((t, i) => {
          const v = r.values[i];
          if (v == null || v <= (o.filterValues?.le ?? 1e-9)) return;
          const x0 = u.valToPos(t - info.step, 'x', true),
            x1 = u.valToPos(t, 'x', true),
            y0 = u.valToPos(y + 1, 'y', true),
            y1 = u.valToPos(y, 'y', true);
          ctx.fillStyle = colorOf(v);
          const g = o.cellGap ?? 1;
          ctx.fillRect(x0, y0, Math.max(1, x1 - x0 - g), Math.max(1, y1 - y0 - g));
        }),
      );
      ctx.restore();
    });
    return c;
  }, [info, timeRange, width]);
  const cells = Array.from({ length: 48 }, (_, i) => min + ((max - min) * i) / 47);
  return (
    <div data-render-reimplemented="heatmap" style={{ width, height }}>
      <UPlotChart
        config={b}
        data={[info.time, info.time.map(() => 0)]}
        width={width}
        height={height - legendH}
        timeRange={timeRange}
      />
      {legendH > 0 && (
        <div
          style={{
            display: 'flex',
            alignItems: 'center',
            gap: 6,
            fontSize: 11,
            height: legendH,
            paddingLeft: 70,
          }}
        >
          <span>{label2(min)}</span>
          <div style={{ display: 'flex', width: 240, height: 8 }}>
            {cells.map((v, i) => (
              <div key={i} style={{ flex: 1, background: colorOf(v) }} />
            ))}
          </div>
          <span>{label2(max)}</span>
        </div>
      )}
    </div>
  );
}
const label2 = (v) => D.formattedValueToString(D.getValueFormat('short')(v));

const tsOptions = {
  legend: { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] },
  tooltip: { mode: 'single', sort: 'none' },
  timezone: undefined,
  orientation: undefined,
  annotations: undefined,
  timeCompare: undefined,
};
const palette = { color: { defaultValue: { mode: 'palette-classic' }, settings: { byValueSupport: true } } };
export const plugins = {
  timeseries: make('timeseries', TimeSeriesPanel, {
    options: tsOptions,
    custom: graphCustom,
    standardOptions: palette,
    level: 'grafana-ui component',
  }),
  stat: make('stat', StatPanel, {
    options: { ...singleStat, ...(statCfg.defaultOptions || {}), textMode: 'auto', text: {} },
    level: 'grafana-ui component',
  }),
  bargauge: make('bargauge', BarGaugePanel, {
    options: { ...singleStat, ...(barCfg.defaultOptions || {}), text: {}, legend: undefined },
    level: 'grafana-ui component',
  }),
  table: make('table', TablePanel, {
    options: {
      ...(tableCfg.defaultOptions || {}),
      footer: undefined,
      enablePagination: undefined,
      maxRowHeight: undefined,
      frozenColumns: undefined,
      disableKeyboardEvents: undefined,
    },
    custom: {
      align: 'auto',
      cellOptions: { type: 'auto' },
      inspect: false,
      width: undefined,
      minWidth: undefined,
      filterable: undefined,
      hideFrom: undefined,
      footer: undefined,
      wrapHeaderText: undefined,
      wrapText: undefined,
      tooltip: undefined,
      displayMode: undefined,
      hidden: undefined,
    },
    level: 'grafana-ui component',
  }),
  heatmap: make('heatmap', HeatmapPanel, {
    options: {
      calculate: false,
      ...(heatCfg.defaultOptions || {}),
      yAxis: {},
      rowsFrame: undefined,
      calculation: undefined,
      cellRadius: undefined,
      cellValues: undefined,
      selectionMode: undefined,
      annotations: undefined,
    },
    custom: { hideFrom: undefined, scaleDistribution: undefined },
    level: 'cells drawn by this harness',
  }),
  text: make('text', TextPanel, {
    options: { mode: 'markdown', content: '', code: undefined },
    skipDataQuery: true,
    level: 'grafana-ui component',
  }),
};
export function pluginFor(id) {
  if (plugins[id]) return plugins[id];
  const Comp = () => (
    <div data-render-unsupported={id} style={{ padding: 12, border: '2px dashed #f55', height: '100%' }}>
      panel type “{id}” cannot be drawn by this harness
    </div>
  );
  return (plugins[id] = make(id, Comp, { level: 'unsupported' }));
}
