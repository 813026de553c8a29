-- The keys of the ids that a part names.
arrayConcat(
    if(response_id = '', [], [cityHash64('response', response_id)]),
    if(request_id = '', [], [cityHash64('request', request_id)]))
