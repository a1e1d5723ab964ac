#!/bin/bash
set -eu
export LC_ALL=C
cd /app
events() { grep -v -e '^#' -e '^$' torus.log; }
events | grep zazen > nadan.txt
events | awk '$3 != "WEATHER" { print $4 }' | sort -u > ships.txt
events | sed -n 's/.*reason="\(.*\)"/\1/p' | sort | uniq -c | sed 's/^ *//' | sort -k1,1nr -k2 > refused.txt
{
  echo berth,arrivals,tons
  events | awk '$3 == "ARRIVE" { split($5, b, "="); split($6, t, "="); n[b[2]]++; s[b[2]] += t[2] }
    END { for (k in n) print k "," n[k] "," s[k] }' | sort
} > tons.csv
events | awk '{ split($1, d, "/"); n[d[3] "-" d[2] "-" d[1]]++ } END { for (k in n) print k "\t" n[k] }' | sort > days.tsv
events | awk -F'\t' 'NR == FNR { owner[$1] = $2; next }
  { split($0, w, " "); if (w[3] == "ARRIVE") n[(w[4] in owner) ? owner[w[4]] : "unknown"]++ }
  END { for (k in n) print k "," n[k] }' owners.tsv - | sort -t, -k2,2nr -k1,1 > owners.csv
