-- What a page reported, laid over the row of its request: the row as its user lived through it, by
-- the rules of `llmtrace.browser.join_beacon`. Each query sees the columns of the one inside it.
--
-- {rows}           the query of rows, with page_found and app_ns beside them
-- {unknown_marks}  the columns of moments that a page cannot report
-- {source}         the type of a source
-- {texts}          the type of a page's fields
SELECT * REPLACE (
    if(paged, page_e2e, e2e_ns) AS e2e_ns,
    if(paged, page_first, ttft_ns) AS ttft_ns,
    if(paged, page_streams, stream) AS stream,
    if(paged, if(page_first IS NULL, page_hb + page_ha, page_hb), held_before_ns) AS held_before_ns,
    if(paged, if(page_first IS NULL, 0, page_ha), held_after_ns) AS held_after_ns,
    if(paged, false, unwatched) AS unwatched,
    if(paged, coalesce(network_client_wait_ns + page_client_wait, network_client_wait_ns, page_client_wait),
        network_client_wait_ns) AS network_client_wait_ns,
    if(paged, coalesce(network_dns_ns + page_dns, network_dns_ns, page_dns), network_dns_ns) AS network_dns_ns,
    if(paged, coalesce(network_connect_ns + page_connect, network_connect_ns, page_connect),
        network_connect_ns) AS network_connect_ns,
    if(paged, coalesce(network_tls_ns + page_tls, network_tls_ns, page_tls), network_tls_ns) AS network_tls_ns,
    if(paged, coalesce(network_rtt_ns + page_rtt, network_rtt_ns, page_rtt), network_rtt_ns) AS network_rtt_ns,
    CAST(if(paged AND page_rtt IS NOT NULL, 'client', toString(network_rtt_source)), '{source}') AS network_rtt_source,
    if(paged AND page_gateway_wins, page_gateway, reported_gateway_ns) AS reported_gateway_ns,
    CAST(if(paged AND page_gateway_wins, 'server_timing', toString(reported_gateway_source)),
        '{source}') AS reported_gateway_source,
    multiIf(
        NOT paged, marked_before,
        page_gateway_wins OR app_ns IS NULL, mapFilter((k, v) -> k != 'render', marked_before),
        mapUpdate(
            mapFilter((k, v) -> k != 'render', marked_before),
            map(CAST('gateway', 'LowCardinality(String)'), marked_before['gateway'] + ifNull(app_ns, 0)))
    ) AS marked_before,
    if(paged, mapFilter((k, v) -> k != 'render', marked_after), marked_after) AS marked_after,
    if(paged AND outcome = 'success' AND page_outcome != '', page_outcome, toString(outcome)) AS outcome,
    if(paged AND outcome = 'success' AND page_outcome != '', page['browser_error_type'],
        toString(error_type)) AS error_type,
    if(paged, page_max_gap, max_gap_ns) AS max_gap_ns,
    if(paged, '', gaps) AS gaps,
    if(paged, page_last_content, last_content_ns) AS last_content_ns,
    if(paged, page_first_byte, first_byte_ns) AS first_byte_ns,
    {unknown_marks},
    if(paged, mapConcat(page, mapFilter((k, v) -> v != '', map(
        'browser_app_e2e_s', toString(ifNull(e2e_ns, 0) / 1e9),
        'browser_app_ttft_s', if(ttft_ns IS NULL, '', toString(assumeNotNull(ttft_ns) / 1e9)),
        'browser_app_held_s', if(unwatched, '', toString((held_before_ns + held_after_ns) / 1e9)),
        'browser_inconsistent', ifNull(contradicted, '')))), browser) AS browser)
FROM (
-- What the page's figures contradict, by more than two milliseconds.
SELECT *,
    if(page_streams AND page_ttft IS NOT NULL, least(page_ttft, page_e2e), NULL) AS page_first,
    arrayStringConcat(arrayFilter(x -> x != '', [
        if(page_wait > page_e2e + 2000000, 'ttft', ''),
        if(page_hb > page_wait + 2000000, 'held_before', ''),
        if(page_ha > page_e2e - least(page_wait, page_e2e) + 2000000, 'held_after', ''),
        if(waited IS NOT NULL AND toInt64OrZero(page['browser_chunks']) != 0
            AND page_wait + 2000000 < waited, 'server', '')]), ' ') AS contradicted
FROM (
SELECT *,
    page_e2e IS NOT NULL AS paged,
    stream AND page_kind != 'whole' AS page_streams,
    ifNull(page_held_before, 0) AS page_hb,
    ifNull(page_held_after, 0) AS page_ha,
    -- A handshake over TCP is one round trip; over QUIC it contains more.
    if(page_connect > 0 AND page['browser_protocol'] != 'h3', page_connect, NULL) AS page_rtt,
    ifNull(page_ttft, page_e2e) AS page_wait,
    ifNull(page_gateway > ifNull(reported_gateway_ns, 0) + ifNull(app_ns, 0), false) AS page_gateway_wins,
    ttft_ns - held_before_ns AS waited
FROM (
-- Seconds as nanoseconds; NULL where the page reported none.
SELECT *,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_e2e_s']) * 1e9), 'Int64') AS page_e2e,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_ttft_s']) * 1e9), 'Int64') AS page_ttft,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_held_before_s']) * 1e9), 'Int64') AS page_held_before,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_held_after_s']) * 1e9), 'Int64') AS page_held_after,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_first_byte_s']) * 1e9), 'Int64') AS page_first_byte,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_last_content_s']) * 1e9), 'Int64') AS page_last_content,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_max_gap_s']) * 1e9), 'Int64') AS page_max_gap,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_client_wait_s']) * 1e9), 'Int64') AS page_client_wait,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_dns_s']) * 1e9), 'Int64') AS page_dns,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_connect_s']) * 1e9), 'Int64') AS page_connect,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_tls_s']) * 1e9), 'Int64') AS page_tls,
    accurateCastOrNull(roundBankers(toFloat64OrNull(page['browser_gateway_s']) * 1e9), 'Int64') AS page_gateway,
    page['browser_kind'] AS page_kind,
    page['browser_outcome'] AS page_outcome
FROM (
SELECT *,
    if(notEmpty(page_found), page_found[1].browser, CAST(map(), '{texts}')) AS page
FROM (
{rows}
)
)
)
)
)
