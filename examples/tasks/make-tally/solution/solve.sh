#!/bin/bash
set -eu
cd /app
grep virus giger.log > siri.txt
echo 1.4.2 > VERSION
sed -i 's|#include <stdlib.h>|#include <stdlib.h>\n#include <string.h>|; s|int i;|unsigned i;|' src/table.c
sed -i 's|, int base)|)|' src/entropy.c src/entropy.h
sed -i 's|int c, seen;|int c;|' src/main.c
cat > Makefile <<'MAKE'
CFLAGS = -std=c11 -O2 -Wall -Wextra -Werror
OBJECTS = build/main.o build/table.o build/entropy.o
PREFIX = /usr

all: build/tally

build/tally: $(OBJECTS)
	$(CC) -o $@ $(OBJECTS) -lm

build/%.o: src/%.c
	@mkdir -p build
	$(CC) $(CFLAGS) -c -o $@ $<

build/main.o: src/table.h src/entropy.h VERSION
build/main.o: CFLAGS += -DVERSION='"$(shell cat VERSION)"'
build/table.o: src/table.h
build/entropy.o: src/entropy.h

clean:
	rm -rf build

install: build/tally
	install -D -m 755 build/tally $(DESTDIR)$(PREFIX)/bin/tally

.PHONY: all clean install
MAKE
make
