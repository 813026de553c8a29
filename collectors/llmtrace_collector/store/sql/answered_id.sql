-- What a client knows a response by that an engine calls by its own id: see `engine_join`.
--
-- {id}  the engine's
multiIf(length({id}) > 512, '', match({id}, '(?s)^chatcmpl-.'), {id},
  extract({id}, '(?s)^(cmpl-.+)-[0-9]+$') != '', extract({id}, '(?s)^(cmpl-.+)-[0-9]+$'),
  extract({id}, '(?s)^(resp_.+)_[0-9]+$') != '', extract({id}, '(?s)^(resp_.+)_[0-9]+$'), {id})
