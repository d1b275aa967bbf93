-- Deletes values that are still the ones that were read, so that later writes are not lost. content_common.lua comes
-- before this script.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; 0; then three arguments per value:
--   t, digest, first capture         a text with its signature
--   c, URL key and digest, value     a capture of a text at a URL
--   o, URL key and digest, value     the same, if the text is gone
--   s, digest, ""                    a signature, if its text is gone
--   m, source, digest                a source, if its text is gone
--   b, number of a hash, ""          deletes the buckets in this hash whose text is not kept any more
--   g, kind, ""                      starts again with one hash if all hashes of this kind are empty
-- Answer: the number of texts

local forgotten = 0
for item = 4, #ARGV, 3 do
  local kind, name, value = ARGV[item], ARGV[item + 1], ARGV[item + 2]
  if kind == 't' then
    if get('t', name) == value then
      drop_text(name)
      forgotten = forgotten + 1
    end
  elseif kind == 'c' or kind == 'o' then
    if get('c', name) == value and (kind == 'c' or not has_text(sub(name, 9))) then
      drop('c', name)
    end
  elseif kind == 's' then
    if not has_text(name) then
      drop('s', sub(name, 1, REF))
    end
  elseif kind == 'm' then
    if get('m', name) == value and not has_text(value) then
      drop('m', name)
    end
  elseif kind == 'b' then
    local key = prefix .. 'b' .. name
    local buckets = run('HGETALL', key)
    for place = 1, #buckets, 2 do
      if not has_signature(buckets[place + 1]) then
        run('HDEL', key, buckets[place])
      end
    end
  else
    local number = 0
    while number < numbers[name] and run('EXISTS', prefix .. name .. number) == 0 do
      number = number + 1
    end
    if number == numbers[name] then
      run('HDEL', prefix .. 'g', name)
      numbers[name] = 1
    end
  end
end
return forgotten
