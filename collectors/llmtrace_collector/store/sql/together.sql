-- What a request saw of all its records of engines: see `llmtrace.engines.join.together`. One record
-- is taken as it is; a prefill and a decode of two engines are the legs of one request; several of
-- one engine are its sequences; of others nothing is known.
--
-- {rows}      the query of requests, with the records in {who}_found
-- {who}       whose records: engine or plugin
-- {together}  the type of what was seen
SELECT * EXCEPT (known, prefills, decodes, ended, engines_joined),
    multiIf(
        length({who}_found) = 1,
        CAST(tuple(
            {who}_found[1].queue, {who}_found[1].prefill, {who}_found[1].decode, {who}_found[1].frontend,
            {who}_found[1].prompt, {who}_found[1].cached, {who}_found[1].output, {who}_found[1].preemptions,
            {who}_found[1].replica, {who}_found[1].connector, NULL), '{together}'),
        NOT known OR empty({who}_found),
        CAST(tuple(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', '', NULL), '{together}'),
        length(prefills) = 1 AND length(decodes) = 1
            AND (prefills[1].replica = '' OR prefills[1].replica != decodes[1].replica),
        CAST(tuple(
            prefills[1].queue, prefills[1].prefill, decodes[1].decode, prefills[1].frontend,
            prefills[1].prompt, prefills[1].cached, decodes[1].output,
            if(arrayExists(x -> x.preemptions IS NULL, {who}_found), NULL,
                arraySum(arrayMap(x -> ifNull(x.preemptions, 0), {who}_found))),
            decodes[1].replica, prefills[1].connector, decodes[1].queue), '{together}'),
        length(engines_joined) = 1 AND engines_joined[1] != '',
        CAST(tuple(
            {who}_found[1].queue, {who}_found[1].prefill, ended - ({who}_found[1].queue + {who}_found[1].prefill),
            {who}_found[1].frontend, NULL, NULL,
            if(arrayExists(x -> x.output IS NULL, {who}_found), NULL,
                arraySum(arrayMap(x -> ifNull(x.output, 0), {who}_found))),
            if(arrayExists(x -> x.preemptions IS NULL, {who}_found), NULL,
                arraySum(arrayMap(x -> ifNull(x.preemptions, 0), {who}_found))),
            {who}_found[1].replica, {who}_found[1].connector, NULL), '{together}'),
        CAST(tuple(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', '', NULL), '{together}')
    ) AS {who},
    notEmpty({who}_found) AS {who}_joined
FROM (
SELECT *,
    arrayAll(x -> isNotNull(x.queue + x.prefill + x.decode), {who}_found) AS known,
    arrayFilter(x -> ifNull(x.decode, -1) = 0, {who}_found) AS prefills,
    arrayFilter(x -> ifNull(x.decode, -1) != 0, {who}_found) AS decodes,
    arrayMax(arrayMap(x -> ifNull(x.queue + x.prefill + x.decode, 0), {who}_found)) AS ended,
    arrayDistinct(arrayMap(x -> x.engine, {who}_found)) AS engines_joined
FROM (
{rows}
)
)
