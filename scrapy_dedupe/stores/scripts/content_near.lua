-- A step of the comparison with near texts in a cluster, where buckets and texts are in several shards.
-- content_common.lua comes before this script.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; lifetime in milliseconds (0: unlimited; buckets are never tidied, since
-- their texts are in other shards); the step:
--   "search", then bands                     answer: for each the text in its bucket, or nil
--   "read", then for each text its reference, and URL key, URL and time (6 bytes) of the asking page
--                                            answer: for each nil, or {signature with the rest of the digest, first
--                                            capture, its crawl id, 1 if this URL had the text before}; the latter
--                                            three are missing if there is no such capture
--   "keep", then digests and signatures      keeps these texts
--   "fill", then bands and references        puts texts into buckets
--   "known", then references                 answer: for each 1 if this text is kept
--   "empty", then bands and references       empties these buckets if these texts are still in them
--   "note", then sources and digests         stores the texts of these sources
--   "source", then sources                   answer: for each the digest of its text, or nil

local step = ARGV[4]
local answers = {}

if step == 'source' then
  for item = 5, #ARGV do
    answers[item - 4] = get('m', ARGV[item])
  end
elseif step == 'search' then
  for item = 5, #ARGV do
    answers[item - 4] = run('HGET', key_of('b', ARGV[item]), ARGV[item])
  end
elseif step == 'known' then
  for item = 5, #ARGV do
    answers[item - 4] = has_signature(ARGV[item]) and 1 or 0
  end
elseif step == 'read' then
  for item = 5, #ARGV, 4 do
    local ref = ARGV[item]
    local value, answer = get('s', ref), false
    if value then
      local digest = ref .. sub(value, REF - 16)
      local first = get('t', digest)
      local found = first and answer_of(digest, first, ARGV[item + 1], ARGV[item + 2], number_in(ARGV[item + 3], 1, 6))
      answer = {value, unpack(found or {})}
    end
    answers[#answers + 1] = answer
  end
else
  for item = 5, #ARGV, 2 do
    local name, value = ARGV[item], ARGV[item + 1]
    if step == 'note' then
      lifetime = 0
      put('m', name, value)
    elseif step == 'keep' then
      put('s', sub(name, 1, REF), value .. sub(name, REF + 1))
    else
      local key = key_of('b', name)
      if step == 'fill' then
        run('HSET', key, name, value)
        lifetime = 0
        make_room('b', key)
      elseif run('HGET', key, name) == value then
        run('HDEL', key, name)
      end
    end
  end
end
return answers
