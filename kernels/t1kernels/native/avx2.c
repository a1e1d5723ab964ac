/* For x86-64 processors with AVX2 and FMA; the same bits as portable.c. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define T1_AVX2
#include "lanes.h"
#define SET avx2
#include "kernels.inc.c"
#endif
