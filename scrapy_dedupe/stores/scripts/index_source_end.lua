-- Ends a source: its records become visible, its crawl is committed, and its counts are added, once.
-- ARGV  2 crawl  3 name of the source  4-7 the four counts  8 number of digests added to alldupes
--       9 the JSON of its container, or ""  10 time  11 its token  12 number of staged batches of waiting revisits
--       13... needs
-- Returns "ok", "again" if there are more digests now or staged batches are gone, "done", "taken" or "dropped".
local crawl, name = ARGV[2], ARGV[3]
local meta, hidden = 'dedupe:crawl:' .. crawl, 'dedupe:hidden:' .. crawl
if call('HEXISTS', BEGUN, name) == 0 and has(DONE, name) then return 'done' end
local state, value = own_source(crawl, name, ARGV[11])
if not value then return state end
if state ~= 'e' then return 'dropped' end
if call('SCARD', 'dedupe:entered:' .. name) ~= tonumber(ARGV[8]) or call('EXISTS', 'dedupe:spare:' .. name) == 1
    or (call('HGET', 'dedupe:newwaits:' .. name, '') or '0') ~= ARGV[12] then
  return 'again'
end
call('HDEL', 'dedupe:newwaits:' .. name, '')
for _, file in ipairs(call('SMEMBERS', 'dedupe:newfiles:' .. name)) do
  call('HDEL', hidden, file)
end
local counts = {ARGV[4], ARGV[5], ARGV[6], ARGV[7]}
add_counts('h:' .. crawl .. ':counts', counts)
if has(COMMITTED, crawl) then
  add_counts(TOTALS, counts)
else
  call('SMOVE', UNCOMMITTED, COMMITTED, crawl)
  call('SREM', COMMITTING, crawl)
  count_commit(crawl)
  call('HSET', meta, 'committed', ARGV[10])
end
if ARGV[9] ~= '' then
  local place = container_place(crawl, name)
  if place then
    call('LSET', 'c:' .. crawl .. ':wacz', place, ARGV[9])
  else
    call('RPUSH', 'c:' .. crawl .. ':wacz', ARGV[9])
  end
end
for i = 13, #ARGV do
  call('SADD', 'dedupe:needs:' .. crawl, ARGV[i])
end
call('HSET', meta, 'ended', call('HINCRBY', KEYS[1], 'ended', 1))
call('SADD', DONE, name)
call('SADD', 'dedupe:sources:' .. crawl, name)
call('HDEL', BEGUN, name)
unqueue(name)
for _, kind in ipairs({'entered', 'spare', 'newfiles'}) do
  call('UNLINK', 'dedupe:' .. kind .. ':' .. name)
end
-- URLs and waiting revisits may be many; readers find them in the keys of the source until they are moved to the crawl's.
if call('EXISTS', 'dedupe:newwaits:' .. name) == 1 and call('EXISTS', 'dedupe:waiting:' .. crawl) == 0 then
  call('RENAME', 'dedupe:newwaits:' .. name, 'dedupe:waiting:' .. crawl)
  call('SADD', WAITERS, crawl)
end
if call('EXISTS', 'dedupe:newurls:' .. name) == 1 and call('EXISTS', 'dedupe:urls:' .. crawl) == 0 then
  call('RENAME', 'dedupe:newurls:' .. name, 'dedupe:urls:' .. crawl)
end
if call('EXISTS', 'dedupe:newurls:' .. name, 'dedupe:newwaits:' .. name) > 0 then
  call('HSET', MERGING, name, crawl)
end
return 'ok'
