"""List the names that Grafana knows: it ignores all others.

Grafana says nothing of an override, transformation or unit it does not know: it does without.
"""

from __future__ import annotations

import re
from typing import Final

from grafana_foundation_sdk.models import units

UNITS: Final = frozenset(value for value in vars(units).values() if isinstance(value, str))
# Units anybody may make up.
CUSTOM_UNIT: Final = re.compile(r"(?:suffix|prefix|time|si|count|currency|bool):")

TRANSFORMATIONS: Final = frozenset(
    """append calculateField concatenate configFromData convertFieldType convertFrameType
    ensureColumns extractFields fieldLookup filterByRefId filterByValue filterFields
    filterFieldsByName filterFrames formatString formatTime groupBy groupToNestedTable
    groupingToMatrix heatmap histogram joinByField joinByLabels labelsToFields limit merge noop
    order organize partitionByValues prepareTimeSeries reduce regression rename renameByRegex
    rowsToFields seriesToColumns seriesToRows smoothing sortBy spatial timeSeriesTable
    transpose""".split()
)
MATCHERS: Final = frozenset(
    """allMatch alwaysMatch anyMatch byFrameRefID byName byNames byRegexp byRegexpOrNames byType
    byTypes byValue first firstTimeField invertMatch neverMatch numeric time""".split()
)
PROPERTIES: Final = frozenset(
    """actions color decimals displayName fieldMinMax filterable links mappings max min noValue
    thresholds unit""".split()
)
# Below `custom.`, of the panel types that have such.
CUSTOM: Final = {
    "timeseries": frozenset(
        """axisBorderShow axisCenteredZero axisColorMode axisGridShow axisLabel axisPlacement
        axisSoftMax axisSoftMin axisWidth barAlignment barMaxWidth barWidthFactor drawStyle
        fillBelowTo fillColor fillOpacity gradientMode hideFrom insertNulls lineColor
        lineInterpolation lineStyle lineWidth pointColor pointSize pointSymbol
        scaleDistribution showPoints showValues spanNulls stacking thresholdsStyle
        transform""".split()
    ),
    "table": frozenset(
        """align cellOptions displayMode filterable footer hidden hideFrom inspect minWidth
        tooltip width wrapHeaderText wrapText""".split()
    ),
    "heatmap": frozenset({"hideFrom", "scaleDistribution"}),
    "stat": frozenset[str](),
    "bargauge": frozenset[str](),
    "gauge": frozenset[str](),
}
# Panels that were removed, and what is in their place.
GONE: Final = {
    "graph": "timeseries",
    "singlestat": "stat",
    "table-old": "table",
    "grafana-piechart-panel": "piechart",
    "grafana-worldmap-panel": "geomap",
}
