-- Begins to make the merged index anew. Another process that does so sees that it must begin again, later.
-- ARGV  2 who  3 for how many milliseconds  4... the crawls that are left out
-- Gives "ok".
call('SET', REBUILDING, ARGV[2], 'PX', ARGV[3])
call('UNLINK', NEW_DUPES, 'dedupe:rebuilt', REMOVING)
for i = 4, #ARGV do
  call('SADD', REMOVING, ARGV[i])
end
return 'ok'
