-- Adds a container to an uncommitted crawl, or replaces its JSON. Also works for a committed crawl that has no container,
-- or has this one without a hash.
-- ARGV  2 crawl  3 its file name  4 JSON  5 "fill", or "add" to leave an existing container with this name unchanged
-- Returns the position of the container, or the state that does not allow it.
local crawl = ARGV[2]
local key = 'c:' .. crawl .. ':wacz'
local state = state_of(crawl)
local is_open_yet = state == 'uncommitted'
if not is_open_yet then
  if state ~= 'committed' or ARGV[5] ~= 'fill' then return state end
elseif call('HEXISTS', 'dedupe:crawl:' .. crawl, 'imported') == 1 then
  return 'importing'
end
local place, container, item, number = container_place(crawl, ARGV[3])
if place then
  if not is_open_yet and container.hash and item ~= ARGV[4] then return 'committed' end
  if ARGV[5] == 'fill' then
    call('LSET', key, place, ARGV[4])
  end
else
  if not is_open_yet and number > 0 then return 'committed' end
  place = call('RPUSH', key, ARGV[4]) - 1
end
if not is_open_yet then call('SADD', DONE, ARGV[3]) end
return place
