-- Confirms the texts of pages that succeeded, and forgets those of pages that failed. content_common.lua comes before
-- this script.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; lifetime in milliseconds (0: unlimited); then for each page "+", "-"
-- or "=" (dropped), the digest of its text, URL key, URL, time (6 bytes), crawl id, the letter of the verdict, similarity
-- (8 bytes or none), the original's digest (empty: the same text)

for item = 4, #ARGV, 9 do
  local operation, digest, url_key, url = ARGV[item], ARGV[item + 1], ARGV[item + 2], ARGV[item + 3]
  local moment, place = ARGV[item + 4], place_of(ARGV[item + 5])
  local kind, similarity, original = ARGV[item + 6], ARGV[item + 7], ARGV[item + 8]
  local ms = number_in(moment, 1, 6)
  now = math.max(now, ms)
  local first = get('t', digest)
  local own = moment .. place .. url

  local is_confirmed = first and sub(first, 1, 1) == 'c'
  if operation == '+' and not is_confirmed then
    put('t', digest, 'c' .. own)
  end
  if operation ~= '-' and (kind == 'n' or original ~= '' or (is_confirmed and sub(first, 11) ~= url)) then
    -- The first capture of a text at a URL is kept until it expires.
    local name = url_key .. digest
    local noted = get('c', name)
    if not noted or is_forgotten(number_in(noted, 2, 7), ms) then
      put('c', name, kind .. moment .. place .. similarity .. original)
    end
  end
  if operation ~= '+' and first == 'p' .. own then
    drop_text(digest)
  end
end
return 0
