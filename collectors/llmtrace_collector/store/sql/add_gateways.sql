-- What gateways between a request and its engine took themselves, in the row of the request.
--
-- {rows}    the query of rows, with gateway_found beside them
-- {source}  the type of a source
SELECT * REPLACE (
    if(reported_gateway_ns IS NULL AND notEmpty(arrayFilter(x -> x.own IS NOT NULL, gateway_found)),
        arraySum(arrayMap(x -> ifNull(x.own, 0), arrayFilter(x -> x.own IS NOT NULL, gateway_found))),
        reported_gateway_ns) AS reported_gateway_ns,
    CAST(
        if(reported_gateway_ns IS NULL AND notEmpty(arrayFilter(x -> x.own IS NOT NULL, gateway_found)),
            'server_timing', toString(reported_gateway_source)),
        '{source}') AS reported_gateway_source,
    if(gateway = '' AND notEmpty(gateway_found), gateway_found[1].gateway, toString(gateway)) AS gateway,
    ifNull(cache_hit, gateway_found[1].cache_hit) AS cache_hit)
FROM (
{rows}
)
