-- Ends a commit: moves the crawl and adds its counts in one step, so that this happens exactly once.
-- ARGV  2 crawl  3 token of the commit  4 time
-- Returns "ok", "committed" (another process was faster) or "reopened".
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if has(COMMITTED, crawl) then return 'committed' end
-- The crawl may be in a newer commit with later records, which this commit has not added.
if not has(COMMITTING, crawl) or call('HGET', meta, 'committing') ~= ARGV[3] then return 'reopened' end
call('SREM', COMMITTING, crawl)
if call('SMOVE', UNCOMMITTED, COMMITTED, crawl) == 0 then return 'reopened' end
forget_cancel(crawl)
call('SREM', CONCURRENT, crawl)
count_commit(crawl)
-- Browsertrix's importer skips containers whose crawl is known already.
for _, item in ipairs(call('LRANGE', 'c:' .. crawl .. ':wacz', 0, -1)) do
  local good, container = pcall(cjson.decode, item)
  if good and type(container) == 'table' and type(container.filename) == 'string' then
    call('SADD', DONE, container.filename)
  end
end
call('HSET', meta, 'committed', ARGV[4])
call('HDEL', meta, 'token', 'committing')
return 'ok'
