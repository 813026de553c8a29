-- A duration and its source: an engine's figure where its source ranks above the one known so far.
--
-- {name}            the column of the duration, without its ending
-- {figure}          the engine's, such as `plugin.queue`
-- {source}          its source
-- {ranks}, {rank}   arguments of `transform` that rank sources; the rank of this one
-- {type}            of the column of sources
if({figure} IS NOT NULL AND ({name}_ns IS NULL OR transform(toString({name}_source), {ranks}) > {rank}),
      {figure}, {name}_ns) AS {name}_ns,
    CAST(if({figure} IS NOT NULL AND ({name}_ns IS NULL
        OR transform(toString({name}_source), {ranks}) > {rank}),
      '{source}', toString({name}_source)), '{type}') AS {name}_source
