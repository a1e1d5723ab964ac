#include <math.h>

#include "entropy.h"

double entropy(const unsigned *counts, unsigned many, unsigned sum, int base)
{
    double bits = 0;
    unsigned i;
    for (i = 0; i < many; i++) {
        double share = (double)counts[i] / sum;
        bits -= share * log2(share);
    }
    return bits;
}
