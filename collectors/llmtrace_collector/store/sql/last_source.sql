-- The source that claimed stage {number} last: `client` if {claimed_after} the first content, else
-- that of the last claim among {before}, the stages claimed before it.
if({claimed_after}, 'client',
      arrayLast((w, s, x) -> s = {number} AND x IS NOT NULL, before_source, {before}, before_ns))
