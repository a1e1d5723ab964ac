#ifndef TABLE_H
#define TABLE_H

struct entry {
    char *word;
    unsigned count;
};

struct table {
    struct entry *entries;
    unsigned used;
    unsigned room;
};

void table_add(struct table *table, const char *word);
void table_sort(struct table *table);

#endif
