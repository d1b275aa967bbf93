-- Begins to import a source.
-- ARGV  2 crawl  3 its name  4 its JSON  5 payload mode  6 time  7 format of this package  8 software
--       9 the JSON of its container without hash, or "" if it has none  10 its token  11... keys, each with its type
-- Returns {"ok", position of the container}, {"leftover"} if it was begun before, {"taken"}, {"done"}, or as index_start.lua.
local crawl, name = ARGV[2], ARGV[3]
local meta = 'dedupe:crawl:' .. crawl
local refused = refusal(ARGV[5], ARGV[7], 11)
if refused then return refused end
if is_taken(name, ARGV[10]) then return {'taken'} end
local state, _, _, _, value = begun_source(name)
if state then
  -- In a repeated call this is the source that the call itself has begun.
  if not (ARGV[1] == '1' and state == 'n' and string.sub(value, 3) == ARGV[10] .. ARGV[4]
      and call('SCARD', 'dedupe:entered:' .. name) == 0) then
    return {'leftover'}
  end
elseif call('HEXISTS', BEGUN, name) == 1 then
  return {'leftover'}
end
if has(DONE, name) then return {'done'} end
local known = call('HMGET', meta, 'software', 'imported', 'canceling')
if has(COMMITTED, crawl) then
  if known[1] and not known[2] then return {'crawled'} end
elseif has(UNCOMMITTED, crawl) then
  if not known[2] then return {'uncommitted'} end
else
  if known[3] then return {'canceling'} end
  forget_cancel(crawl)
  call('DEL', meta)
  call('SADD', UNCOMMITTED, crawl)
  call('HSET', meta, 'started', ARGV[6], 'software', ARGV[8], 'imported', '1')
end
mark_index(ARGV[5], ARGV[7])
local place, slot = 0, '-'
if ARGV[9] ~= '' then
  place = container_place(crawl, name)
  if not place then
    place = call('RPUSH', 'c:' .. crawl .. ':wacz', ARGV[9]) - 1
    slot = '+'
  end
end
if not state then
  call('HSET', BEGUN, name, 'n' .. slot .. ARGV[10] .. ARGV[4])
end
return {'ok', place}
