-- The condition of rows of which traces and spans are chosen.
--
-- traces, spans  their ids; a row may have the trace of one and the span of another
trace_id IN {traces:Array(String)} AND span_id IN {spans:Array(String)}
