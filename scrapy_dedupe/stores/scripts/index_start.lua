-- Begins a crawl, or continues it.
-- ARGV  2 crawl  3 payload mode  4 time  5 format of this package  6 software  7 "1" for a concurrent crawl
--       8... keys, each with the type that it must have
-- Returns {"ok"}, {"type", key, found, expected}, {"newer", format}, {"payload", mode}, {"resetting"} if an interrupted
-- reset must be completed first, or {state}.
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
local refused = refusal(ARGV[3], ARGV[5], 8)
if refused then return refused end
if has(COMMITTED, crawl) then return {'committed'} end
if call('HEXISTS', meta, 'canceling') == 1 then return {'canceling'} end
if has(UNCOMMITTED, crawl) and call('HEXISTS', meta, 'imported') == 1 then return {'importing'} end
if has(UNCOMMITTED, crawl) and call('HEXISTS', meta, 'resetting') == 1 then return {'resetting'} end
mark_index(ARGV[3], ARGV[5])
if not has(UNCOMMITTED, crawl) and forget_cancel(crawl) then
  call('DEL', meta)
end
if call('SADD', UNCOMMITTED, crawl) == 1 and ARGV[7] == '1' then
  call('HSET', meta, 'concurrent', '1')
end
if call('HEXISTS', meta, 'concurrent') == 1 then
  call('SADD', CONCURRENT, crawl)
end
call('SREM', COMMITTING, crawl)
call('HSETNX', meta, 'started', ARGV[4])
call('HSETNX', meta, 'software', ARGV[6])
call('HSETNX', meta, 'since', call('HGET', KEYS[1], 'ended') or '0')
return {'ok'}
