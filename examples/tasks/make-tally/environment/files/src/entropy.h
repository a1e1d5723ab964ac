#ifndef ENTROPY_H
#define ENTROPY_H

double entropy(const unsigned *counts, unsigned many, unsigned sum, int base);

#endif
