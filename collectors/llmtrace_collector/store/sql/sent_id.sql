-- What a client sent with a request that an engine calls by its own id: see `engine_join`.
--
-- {id}  the engine's
multiIf(length({id}) > 512, '', match({id}, '(?s)^chatcmpl-.'), substring({id}, 10),
  extract({id}, '(?s)^(cmpl-.+)-[0-9]+$') != '',
  substring(extract({id}, '(?s)^(cmpl-.+)-[0-9]+$'), 6), '')
