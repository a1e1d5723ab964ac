#!/bin/bash
set -eu
cd /app
sort -n mitan.dat > rafel.txt
mkdir -p data
printf '%s\n' '[lantern]' 'address = 127.0.0.1' 'port = 8117' 'data = data' 'limit = 100' > lantern.ini
python3 - <<'MEND'
text = open("server.py").read()
text = text.replace("import os\nimport socket\n", "import os\nimport signal\nimport socket\nimport sys\n")
text = text.replace('words = line.split()', 'words = line.rstrip("\\n").split(" ", 2)')
text = text.replace('return "VALUE " + self.values[words[1]]',
                    'return "VALUE " + self.values[words[1]] if words[1] in self.values else "NONE"')
text = text.replace('("0.0.0.0", int(config["port"]))', '(config["address"], int(config["port"]))')
text = text.replace('    listener.listen()\n', '    listener.listen()\n    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n')
head, tail = text.split("    while True:\n")
body, end = tail.split("\n\nif __name__")
body = "        while True:\n" + "".join(f"    {line}\n" for line in body.rstrip("\n").split("\n"))
open("server.py", "w").write(f"{head}    try:\n{body}    finally:\n        store.save()\n\n\nif __name__{end}")
MEND
cat > start.sh <<'START'
#!/bin/bash
cd "$(dirname "$(readlink -f "$0")")" || exit 1
if [ -f lantern.pid ] && kill -0 "$(cat lantern.pid)" 2>/dev/null; then exit 0; fi
setsid python3 "$PWD/server.py" </dev/null >>data/lantern.log 2>&1 &
echo $! > lantern.pid
for _ in $(seq 200); do
  if (exec 3<>/dev/tcp/127.0.0.1/8117; echo PING >&3; read -r answer <&3; [ "$answer" = PONG ]) 2>/dev/null; then exit 0; fi
  kill -0 "$(cat lantern.pid)" 2>/dev/null || exit 1
  sleep 0.05
done
exit 1
START
cat > stop.sh <<'STOP'
#!/bin/bash
cd "$(dirname "$(readlink -f "$0")")" || exit 1
[ -f lantern.pid ] || exit 0
process=$(cat lantern.pid)
kill "$process" 2>/dev/null
while kill -0 "$process" 2>/dev/null; do sleep 0.02; done
rm -f lantern.pid
STOP
bash start.sh
exec 3<>/dev/tcp/127.0.0.1/8117
echo SET lamp lit and watched >&3
read -r answer <&3
exec 3>&-
bash stop.sh
[ "$answer" = OK ]
