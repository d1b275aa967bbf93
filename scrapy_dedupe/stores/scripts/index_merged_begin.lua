-- Begins to make the merged index anew. Another process that does so sees that it must begin again, later.
-- ARGV  2 who  3 for how many milliseconds  4 a crawl whose records will be those of another one, or ""  5 that one
--       6... the crawls that are left out
-- Gives "ok".
call('SET', REBUILDING, ARGV[2], 'PX', ARGV[3])
call('UNLINK', NEW_DUPES, REBUILT, REMOVING, REPLACING)
if ARGV[4] ~= '' then call('HSET', REPLACING, ARGV[4], ARGV[5]) end
for i = 6, #ARGV do
  call('SADD', REMOVING, ARGV[i])
end
return 'ok'
