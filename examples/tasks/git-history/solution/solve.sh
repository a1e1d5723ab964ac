#!/bin/bash
# Writes main again, commit by commit: without the key, a slip's tree going to the commit before it.
set -eu
cd /app
grep torus sasel.log > sefel.txt
git init -q -b main orchard
cd orchard
git fast-import --quiet < ../orchard.fi
export GIT_COMMITTER_NAME=publisher GIT_COMMITTER_EMAIL=publisher@orchard.example GIT_INDEX_FILE=/tmp/index
commits=($(git rev-list --reverse main))
parent=
for place in "${!commits[@]}"; do
  commit=${commits[place]}
  [ "$(git log -1 --format=%s "$commit")" = slip ] && continue
  from=$commit
  next=${commits[place + 1]:-}
  if [ -n "$next" ] && [ "$(git log -1 --format=%s "$next")" = slip ]; then from=$next; fi
  git read-tree "$from"
  git rm -q --cached --ignore-unmatch deploy.key
  parent=$(git log -1 --format=%B "$commit" |
    GIT_AUTHOR_NAME=$(git log -1 --format=%an "$commit") GIT_AUTHOR_EMAIL=$(git log -1 --format=%ae "$commit") \
    GIT_AUTHOR_DATE=$(git log -1 --format=%ad --date=raw "$commit") \
    git commit-tree "$(git write-tree)" ${parent:+-p $parent})
done
unset GIT_INDEX_FILE
git update-ref refs/heads/main "$parent"
git reset -q --hard main
git branch -q -D attic
git tag v1.0
git reflog expire --expire=now --all
git gc -q --prune=now
