/* Causal attention of rows over a paged store of keys and values.

   Keys lie in pages of 64 positions as (page, G, D, 64), values as (page, G, 64, D), float32. A row of a sequence whose pages begin at page f
   and whose position is p looks at the positions 0..p of pages f, f + 1, ... Pages are folded from left to right (online softmax); scores fold
   over D, values over positions. So a row's result depends on its query, its position and what its sequence stored, and on nothing else:
   decode, prefill in any chunks, and packed training give the same bits. What lies behind a row's position is never used. */

#define PAGE 64
#define MAX_WIDTH8 32

/* Calls f with WIDTH8 = D / 8 as a constant for the usual widths, so that a row's sums stay in registers. */
#ifdef T1_AVX2
#define FOR_WIDTH(D, f, ...)                                                                                           \
    if ((D) == 32) { enum { WIDTH8 = 4 }; f(__VA_ARGS__); }                                                            \
    else if ((D) == 64) { enum { WIDTH8 = 8 }; f(__VA_ARGS__); }                                                       \
    else if ((D) == 128) { enum { WIDTH8 = 16 }; f(__VA_ARGS__); }                                                     \
    else { const int WIDTH8 = (int)(D) / 8; f(__VA_ARGS__); }
#else
#define FOR_WIDTH(D, f, ...) { const int WIDTH8 = (int)(D) / 8; f(__VA_ARGS__); }
#endif

/* scores of one query against a page's 64 keys, scaled; lanes from n on are -inf. */
INLINE void NAME(scores)(const float *query, const float *keys_D64, int D, float scale, int n, v8 s[8]) {
    UNROLL for (int j = 0; j < 8; j++) s[j] = all8(0.0f);
    for (int d = 0; d < D; d++) {
        const v8 q = all8(query[d]);
        UNROLL for (int j = 0; j < 8; j++) s[j] = fma8(q, load8(keys_D64 + d * PAGE + 8 * j), s[j]);
    }
    UNROLL for (int j = 0; j < 8; j++) s[j] = s[j] * scale;
    if (n < PAGE) {
        const v8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
        for (int j = 0; j < 8; j++) s[j] = select8(lane + 8 * j < n, s[j], all8(-INFINITY));
    }
}
INLINE v8 NAME(tree_max)(const v8 s[8]) {
    return max8(max8(max8(s[0], s[4]), max8(s[2], s[6])), max8(max8(s[1], s[5]), max8(s[3], s[7])));
}
INLINE float NAME(tree_sum)(const v8 s[8]) {
    return sum8(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
}

INLINE void NAME(attend_row)(const float *query, const float *keys, const float *values, int64_t page_stride, int D8, int64_t position,
                             float scale, float *out, float *highest, float *total) {
    v8 acc[MAX_WIDTH8], s[8];
    float m = -INFINITY, l = 0.0f;
    for (int d = 0; d < D8; d++) acc[d] = all8(0.0f);
    for (int64_t b = 0; b <= position / PAGE; b++) {
        const int64_t left = position + 1 - b * PAGE;
        const int n = left < PAGE ? (int)left : PAGE;
        NAME(scores)(query, keys + b * page_stride, D8 * 8, scale, n, s);
        const float mb = biggest8(NAME(tree_max)(s)), mn = mb > m ? mb : m;
        const float a = exp1(m - mn);
        float p[PAGE];
        for (int j = 0; j < 8; j++) {
            s[j] = exp8(s[j] - mn); /* lanes that are hidden give exactly 0 */
            store8(p + 8 * j, s[j]);
        }
        l = l * a + NAME(tree_sum)(s);
        m = mn;
        for (int d = 0; d < D8; d++) acc[d] = acc[d] * a;
        const float *v = values + b * page_stride;
        for (int j = 0; j < n; j++) {
            const v8 w = all8(p[j]);
            for (int d = 0; d < D8; d++) acc[d] = fma8(w, load8(v + (j * D8 + d) * 8), acc[d]);
        }
    }
    for (int d = 0; d < D8; d++) store8(out + 8 * d, acc[d] / l);
    *highest = m;
    *total = l;
}

/* out (N, Q, D), and each row's softmax as (highest, total) in (N, Q, 2). */
static void NAME(attend)(int64_t N, int64_t Q, int64_t G, int64_t D, const float *query, const float *keys, const float *values,
                         const int64_t *first_page, const int64_t *position, float scale, float *out, float *softmax) {
    const int64_t share = Q / G, stride = G * D * PAGE;
    for (int64_t n = 0; n < N; n++)
        for (int64_t h = 0; h < Q; h++) {
            const int64_t at = n * Q + h, store = first_page[n] * stride + h / share * D * PAGE;
            const float *q = query + at * D, *k = keys + store, *v = values + store;
            float *o = out + at * D, *st = softmax + 2 * at;
            FOR_WIDTH(D, NAME(attend_row), q, k, v, stride, WIDTH8, position[n], scale, o, st, st + 1);
        }
}

/* Puts rows into the store. */
static void NAME(store_rows)(int64_t N, int64_t G, int64_t D, const float *key, const float *value, const int64_t *first_page,
                             const int64_t *position, float *keys, float *values) {
    const int64_t stride = G * D * PAGE;
    for (int64_t n = 0; n < N; n++) {
        const int64_t page = (first_page[n] + position[n] / PAGE) * stride, place = position[n] % PAGE;
        for (int64_t g = 0; g < G; g++) {
            float *k = keys + page + g * D * PAGE + place, *v = values + page + (g * PAGE + place) * D;
            const float *from = key + (n * G + g) * D;
            for (int64_t d = 0; d < D; d++) k[d * PAGE] = from[d];
            memcpy(v, value + (n * G + g) * D, D * sizeof(float));
        }
    }
}

/* One tile of at most 64 query rows of one head: folds into dk and dv (float32 partials of the tile), writes dq. */
INLINE void NAME(backward_row)(const float *query, const float *dout, const float *out, const float *softmax, const float *keys_T,
                               const float *values_T, const float *keys, int64_t page_stride, int D8, int64_t position, float scale,
                               float *dquery, float *dk, float *dv) {
    v8 acc[MAX_WIDTH8], s[8], dp[8];
    v8 dot = all8(0.0f);
    for (int d = 0; d < D8; d++) {
        acc[d] = all8(0.0f);
        dot = fma8(load8(dout + 8 * d), load8(out + 8 * d), dot);
    }
    const float mean = sum8(dot), m = softmax[0], l = softmax[1];
    for (int64_t b = 0; b <= position / PAGE; b++) {
        const int64_t left = position + 1 - b * PAGE;
        const int n = left < PAGE ? (int)left : PAGE;
        NAME(scores)(query, keys_T + b * page_stride, D8 * 8, scale, n, s);
        NAME(scores)(dout, values_T + b * page_stride, D8 * 8, 1.0f, PAGE, dp);
        float p[PAGE], ds[PAGE];
        for (int j = 0; j < 8; j++) {
            const v8 w = exp8(s[j] - m) / l;
            store8(p + 8 * j, w);
            store8(ds + 8 * j, w * (dp[j] - mean) * scale);
        }
        const float *k = keys + b * page_stride;
        float *to_k = dk + b * PAGE * D8 * 8, *to_v = dv + b * PAGE * D8 * 8;
        for (int j = 0; j < n; j++) {
            const v8 g = all8(ds[j]), w = all8(p[j]);
            for (int d = 0; d < D8; d++) {
                const int64_t at = (j * D8 + d) * 8;
                acc[d] = fma8(g, load8(k + at), acc[d]);
                store8(to_k + at, fma8(g, load8(query + 8 * d), load8(to_k + at)));
                store8(to_v + at, fma8(w, load8(dout + 8 * d), load8(to_v + at)));
            }
        }
    }
    for (int d = 0; d < D8; d++) store8(dquery + 8 * d, acc[d]);
}

/* Gradients of whole sequences (rows start[s]..start[s] + length[s], positions from 0). Queries go in tiles of 64 rows; a tile's partials of dk and dv are
   folded over its rows and the heads that share a key head, then summed over tiles on the grid. `work` holds 7 * P * D floats, then 2 * P * D doubles,
   with P the longest length rounded up to pages. `largest` (S) is the largest magnitude of a sequence's partials. */
static void NAME(attention_gradient)(int64_t S, const int64_t *start, const int64_t *length, int64_t Q, int64_t G, int64_t D, int64_t P,
                                      const float *query, const float *key, const float *value, const float *out, const float *softmax,
                                      const float *dout, float scale, double big, float *dquery, float *dkey, float *dvalue, float *largest,
                                      float *work) {
    const int64_t share = Q / G;
    const int64_t size = P * D;
    float *keys_T = work, *values_T = work + size, *keys = work + 2 * size, *dk = work + 3 * size, *dv = work + 4 * size;
    double *sum_k = (double *)(work + 6 * size), *sum_v = sum_k + size;
    for (int64_t s = 0; s < S; s++) {
        v8 biggest = all8(0.0f);
        const int64_t from = start[s], rows = length[s], pages = (rows + PAGE - 1) / PAGE, used = pages * PAGE * D;
        for (int64_t g = 0; g < G; g++) {
            memset(keys_T, 0, used * sizeof(float));
            memset(values_T, 0, used * sizeof(float));
            memset(keys, 0, used * sizeof(float));
            memset(sum_k, 0, used * sizeof(double));
            memset(sum_v, 0, used * sizeof(double));
            for (int64_t n = 0; n < rows; n++) {
                const float *k = key + ((from + n) * G + g) * D, *v = value + ((from + n) * G + g) * D;
                const int64_t page = n / PAGE * D * PAGE, place = n % PAGE;
                memcpy(keys + n * D, k, D * sizeof(float));
                for (int64_t d = 0; d < D; d++) {
                    keys_T[page + d * PAGE + place] = k[d];
                    values_T[page + d * PAGE + place] = v[d];
                }
            }
            for (int64_t top = 0; top < rows; top += PAGE) {
                const int64_t end = top + PAGE < rows ? top + PAGE : rows, seen = (top / PAGE + 1) * PAGE * D;
                memset(dk, 0, seen * sizeof(float));
                memset(dv, 0, seen * sizeof(float));
                for (int64_t h = g * share; h < (g + 1) * share; h++)
                    for (int64_t n = top; n < end; n++) {
                        const int64_t at = (from + n) * Q + h;
                        const float *q = query + at * D, *o = out + at * D, *go = dout + at * D, *st = softmax + 2 * at;
                        float *dq = dquery + at * D;
                        FOR_WIDTH(D, NAME(backward_row), q, go, o, st, keys_T, values_T, keys, D * PAGE, WIDTH8, n, scale, dq, dk, dv);
                    }
                for (int64_t i = 0; i < seen; i += 8) {
                    const v8 a = load8(dk + i), b = load8(dv + i);
                    biggest = max8(max8(max8(a, -a), max8(b, -b)), biggest);
                    for (int j = 0; j < 8; j++) {
                        sum_k[i + j] += on_grid(dk[i + j], big);
                        sum_v[i + j] += on_grid(dv[i + j], big);
                    }
                }
            }
            for (int64_t n = 0; n < rows; n++)
                for (int64_t d = 0; d < D; d++) {
                    dkey[((from + n) * G + g) * D + d] = (float)sum_k[n * D + d];
                    dvalue[((from + n) * G + g) * D + d] = (float)sum_v[n * D + d];
                }
        }
        largest[s] = biggest8(biggest);
    }
}
