-- The engine's own time beside queue and work, as far as each kind of span reports it.
if(tells = 'engine', engine_ttft - engine_queue - engine_prefill,
       engine_e2e - engine_queue - engine_inference)
