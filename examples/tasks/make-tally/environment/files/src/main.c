#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entropy.h"
#include "table.h"

#define LONGEST 63

int main(int argc, char **argv)
{
    struct table table = {0};
    char word[LONGEST + 1];
    unsigned length = 0, sum = 0, *counts;
    int c, seen;

    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("tally %s\n", VERSION);
        return 0;
    }
    do {
        c = getchar();
        if (c != EOF && isalpha(c)) {
            if (length < LONGEST)
                word[length++] = (char)tolower(c);
        } else if (length > 0) {
            word[length] = '\0';
            table_add(&table, word);
            length = 0;
            sum++;
        }
    } while (c != EOF);
    table_sort(&table);
    counts = calloc(table.used + 1, sizeof *counts);
    for (unsigned i = 0; i < table.used; i++) {
        printf("%u %s\n", table.entries[i].count, table.entries[i].word);
        counts[i] = table.entries[i].count;
    }
    printf("entropy %.3f\n", entropy(counts, table.used, sum));
}
