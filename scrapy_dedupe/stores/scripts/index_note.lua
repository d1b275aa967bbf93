-- Changes the metadata of an uncommitted crawl.
-- ARGV  2 crawl  3 what: "file", "counts", "incomplete", "complete", "closed" (before a reset; 4 a new token) or
--       "reset" (4 the token of the reset)  4... values
-- Returns "ok" or the state that does not allow it; for "closed" {the token of the reset, which may have begun before}.
local crawl, what = ARGV[2], ARGV[3]
local meta = 'dedupe:crawl:' .. crawl
if not is_uncommitted(crawl) then return state_of(crawl) end
if call('HEXISTS', meta, 'imported') == 1 then return 'importing' end
if what == 'file' then
  file_number(crawl, ARGV[4])
elseif what == 'counts' then
  call('HSET', 'h:' .. crawl .. ':counts', 'totalUrls', ARGV[4], 'dupeUrls', ARGV[5], 'conservedSize', ARGV[6],
    'totalCrawlSize', ARGV[7])
elseif what == 'incomplete' then
  call('HSET', meta, 'incomplete', '1')
elseif what == 'complete' then
  call('HDEL', meta, 'incomplete')
elseif what == 'closed' then
  -- Until its digests are removed from alldupes, nobody may refer to them or add them to a new merged index.
  call('SREM', COMMITTING, crawl)
  call('SREM', CONCURRENT, crawl)
  call('HSETNX', meta, 'resetting', ARGV[4])
  return {call('HGET', meta, 'resetting')}
elseif what == 'reset' and call('HGET', meta, 'resetting') == ARGV[4] then
  call('HDEL', meta, 'resetting')
  call('UNLINK', 'h:' .. crawl, 'h:' .. crawl .. ':counts')
  for _, kind in ipairs({'where', 'urls', 'needs', 'waiting'}) do
    call('UNLINK', 'dedupe:' .. kind .. ':' .. crawl)
  end
  call('SREM', WAITERS, crawl)
  if call('HEXISTS', meta, 'concurrent') == 1 then
    call('SADD', CONCURRENT, crawl)
  end
end
return 'ok'
