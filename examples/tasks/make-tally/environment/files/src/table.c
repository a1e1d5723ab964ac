#include <stdlib.h>

#include "table.h"

static char *copy_of(const char *word)
{
    char *copy = malloc(strlen(word) + 1);
    if (copy == NULL)
        exit(3);
    return strcpy(copy, word);
}

void table_add(struct table *table, const char *word)
{
    int i;
    for (i = 0; i < table->used; i++) {
        if (strcmp(table->entries[i].word, word) == 0) {
            table->entries[i].count++;
            return;
        }
    }
    if (table->used == table->room) {
        table->room = table->room ? 2 * table->room : 16;
        table->entries = realloc(table->entries, table->room * sizeof *table->entries);
        if (table->entries == NULL)
            exit(3);
    }
    table->entries[table->used].word = copy_of(word);
    table->entries[table->used].count = 1;
    table->used++;
}

static int by_count(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    if (a->count != b->count)
        return a->count < b->count ? 1 : -1;
    return strcmp(a->word, b->word);
}

void table_sort(struct table *table)
{
    qsort(table->entries, table->used, sizeof *table->entries, by_count);
}
