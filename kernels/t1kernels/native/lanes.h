/* Eight float lanes, and the few functions whose bits every implementation must share.

   Guarantees: an operation's result in a lane depends on that lane alone, so bits do not change with a row's place, with the number of
   rows, or with the instruction set: every fused multiply-add is written out, nothing else is ever fused (-ffp-contract=off), and sums
   over lanes go through one fixed tree. */
#ifndef T1_LANES_H
#define T1_LANES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

INLINE v8 load8(const float *from) { v8 x; memcpy(&x, from, sizeof x); return x; }
INLINE void store8(float *to, v8 x) { memcpy(to, &x, sizeof x); }
INLINE v8 all8(float x) { return (v8){x, x, x, x, x, x, x, x}; }
INLINE v8 select8(v8i where, v8 yes, v8 no) { return (v8)(((v8i)yes & where) | ((v8i)no & ~where)); }
INLINE v8 max8(v8 a, v8 b) { return select8(a > b, a, b); }

#ifdef T1_AVX2
#include <immintrin.h>
INLINE v8 fma8(v8 a, v8 b, v8 c) { return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
#if defined(__aarch64__) || defined(__FMA__)
INLINE
#else
static __attribute__((noinline)) /* eight calls of the library's fmaf: inlined, they would fill the compiler's memory */
#endif
v8 fma8(v8 a, v8 b, v8 c) {
    v8 r;
    for (int i = 0; i < 8; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
}
#endif

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) */
INLINE float sum8(v8 x) {
    const float a = x[0] + x[4], b = x[1] + x[5], c = x[2] + x[6], d = x[3] + x[7];
    return (a + c) + (b + d);
}
INLINE float biggest8(v8 x) {
    float m = x[0];
    for (int i = 1; i < 8; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* e^x, at most 1 unit in the last place from the correctly rounded value for normal results; below -104 it is 0. */
INLINE v8 exp8(v8 x) {
    const v8 low = all8(-104.0f), high = all8(89.0f);
    const v8i vanishing = x < low;
    x = select8(vanishing, low, x);
    x = select8(x > high, high, x);
    const v8 shifted = x * 1.44269504088896341f + 12582912.0f; /* the integer nearest to x / ln 2, in the low bits */
    const v8i n = (v8i)shifted - 0x4B400000;
    const v8 whole = shifted - 12582912.0f;
    v8 r = fma8(whole, all8(-0.693359375f), x);
    r = fma8(whole, all8(2.12194440e-4f), r);
    v8 p = fma8(all8(1.9875691500e-4f), r, all8(1.3981999507e-3f));
    p = fma8(p, r, all8(8.3334519073e-3f));
    p = fma8(p, r, all8(4.1665795894e-2f));
    p = fma8(p, r, all8(1.6666665459e-1f));
    p = fma8(p, r, all8(5.0000001201e-1f));
    const v8 y = fma8(p, r * r, r) + 1.0f;
    const v8i half = n >> 1; /* in two steps, so that subnormal results and infinity come out right */
    const v8 scaled = y * (v8)((half + 127) << 23) * (v8)((n - half + 127) << 23);
    return select8(vanishing, all8(0.0f), scaled);
}
INLINE float exp1(float x) { return exp8(all8(x))[0]; }
INLINE float log1(float x) { return (float)log((double)x); }

/* --- elements: float32, or bfloat16 in 16 bits ---------------------------------------------------------------------- */

typedef uint16_t bf16;
INLINE float load_f32(const float *p) { return *p; }
INLINE void store_f32(float *p, float x) { *p = x; }
INLINE float load_bf16(const bf16 *p) {
    const uint32_t bits = (uint32_t)*p << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
/* Round to nearest, ties to even; a NaN stays one. */
INLINE void store_bf16(bf16 *p, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    *p = x != x ? 0x7FC0 : (bf16)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
INLINE float round_bf16(float x) { bf16 b; store_bf16(&b, x); return load_bf16(&b); }

/* --- the grid of an exact accumulator ------------------------------------------------------------------------------- */

/* x on the grid of 2^-s, for big = 1.5 * 2^(52 - s): sums of such values in float64 are exact, in any order, while they stay below 2^(53 - s). */
INLINE double on_grid(float x, double big) { return ((double)x + big) - big; }

#endif
