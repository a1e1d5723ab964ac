/* Products. Every output is one strict fold of fused multiply-adds over k = 0, 1, ...: the same bits for any number of rows.

   B is packed in panels of 16 columns, (panels, depth, 16), zero padded, of which rows 0..K are used; A is rows of float32. */

#define PANEL 16

/* MR rows by NP panels, folded on from C when `keep`. */
#ifdef T1_AVX2
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif

#define DEFINE_TILE(MR, NP)                                                                                            \
    INLINE void NAME(tile_##MR##_##NP)(int64_t K, int64_t depth, const float *A, int64_t lda, const float *B, float *C, int64_t ldc,  \
                                       int64_t cols, int keep) {                                                       \
        v8 c[MR][2 * NP];                                                                                              \
        float edge[MR][PANEL * NP];                                                                                    \
        const int whole = cols >= PANEL * NP;                                                                          \
        if (keep && !whole) {                                                                                          \
            memset(edge, 0, sizeof edge);                                                                              \
            for (int i = 0; i < MR; i++) memcpy(edge[i], C + i * ldc, cols * sizeof(float));                           \
        }                                                                                                              \
        UNROLL for (int i = 0; i < MR; i++)                                                           \
            UNROLL for (int j = 0; j < 2 * NP; j++)                                                   \
                c[i][j] = !keep ? all8(0.0f) : load8((whole ? C + i * ldc : edge[i]) + 8 * j);                         \
        for (int64_t k = 0; k < K; k++) {                                                                              \
            v8 b[2 * NP];                                                                                              \
            UNROLL for (int j = 0; j < 2 * NP; j++)                                                   \
                b[j] = load8(B + (j / 2) * depth * PANEL + k * PANEL + (j % 2) * 8);                                   \
            UNROLL for (int i = 0; i < MR; i++) {                                                     \
                const v8 a = all8(A[i * lda + k]);                                                                     \
                UNROLL for (int j = 0; j < 2 * NP; j++) c[i][j] = fma8(a, b[j], c[i][j]);             \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < MR; i++)                                                           \
            UNROLL for (int j = 0; j < 2 * NP; j++)                                                   \
                store8((whole ? C + i * ldc : edge[i]) + 8 * j, c[i][j]);                                              \
        if (!whole)                                                                                                    \
            for (int i = 0; i < MR; i++) memcpy(C + i * ldc, edge[i], cols * sizeof(float));                           \
    }
DEFINE_TILE(6, 1)
DEFINE_TILE(5, 1)
DEFINE_TILE(4, 1)
DEFINE_TILE(3, 1)
DEFINE_TILE(2, 2)
DEFINE_TILE(1, 4)
DEFINE_TILE(2, 1)
DEFINE_TILE(1, 1)

/* C (M, N) from A (M, K) and packed B; with `keep` the fold goes on from what C holds. */
static void NAME(matmul)(int64_t M, int64_t N, int64_t K, int64_t depth, const float *A, int64_t lda, const float *B, float *C, int64_t ldc,
                         int keep) {
    const int64_t chunk = K < 256 ? 384 : 98304 / K < 6 ? 6 : 98304 / K / 6 * 6;
    for (int64_t top = 0; top < M; top += chunk) {
        const int64_t end = top + chunk < M ? top + chunk : M;
        const int64_t rest = (end - top) % 6;
        for (int64_t n = 0; n < N; n += PANEL) {
            const float *b = B + n * depth;
            int64_t i = top;
            for (; i + 6 <= end; i += 6) NAME(tile_6_1)(K, depth, A + i * lda, lda, b, C + i * ldc + n, ldc, N - n, keep);
            const float *a = A + i * lda;
            float *c = C + i * ldc + n;
            if (rest == 5) NAME(tile_5_1)(K, depth, a, lda, b, c, ldc, N - n, keep);
            if (rest == 4) NAME(tile_4_1)(K, depth, a, lda, b, c, ldc, N - n, keep);
            if (rest == 3) NAME(tile_3_1)(K, depth, a, lda, b, c, ldc, N - n, keep);
        }
        const float *a = A + (end - rest) * lda;
        float *c = C + (end - rest) * ldc;
        int64_t n = 0;
        if (rest == 2) {
            for (; n + 2 * PANEL <= N; n += 2 * PANEL) NAME(tile_2_2)(K, depth, a, lda, B + n * depth, c + n, ldc, N - n, keep);
            for (; n < N; n += PANEL) NAME(tile_2_1)(K, depth, a, lda, B + n * depth, c + n, ldc, N - n, keep);
        }
        if (rest == 1) {
            for (; n + 4 * PANEL <= N; n += 4 * PANEL) NAME(tile_1_4)(K, depth, a, lda, B + n * depth, c + n, ldc, N - n, keep);
            for (; n < N; n += PANEL) NAME(tile_1_1)(K, depth, a, lda, B + n * depth, c + n, ldc, N - n, keep);
        }
    }
}

/* One grain of a weight gradient: MR x 16 outputs folded over the grain's rows in float32, then put on the grid and added. */
#define DEFINE_GRAIN(MR)                                                                                               \
    INLINE v8 NAME(grain_##MR)(int64_t rows, const float *D, int64_t ldd, const float *X, double *acc, int64_t ldacc,  \
                               int64_t cols, double big, v8 biggest) {                                                 \
        v8 c[MR][2];                                                                                                   \
        UNROLL for (int i = 0; i < MR; i++) c[i][0] = c[i][1] = all8(0.0f);                           \
        for (int64_t m = 0; m < rows; m++) {                                                                           \
            const v8 b0 = load8(X + m * PANEL), b1 = load8(X + m * PANEL + 8);                                         \
            UNROLL for (int i = 0; i < MR; i++) {                                                     \
                const v8 a = all8(D[m * ldd + i]);                                                                     \
                c[i][0] = fma8(a, b0, c[i][0]);                                                                        \
                c[i][1] = fma8(a, b1, c[i][1]);                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < MR; i++) {                                                         \
            float out[PANEL];                                                                                          \
            store8(out, c[i][0]);                                                                                      \
            store8(out + 8, c[i][1]);                                                                                  \
            biggest = max8(max8(c[i][0], -c[i][0]), biggest);                                                          \
            biggest = max8(max8(c[i][1], -c[i][1]), biggest);                                                          \
            double *a = acc + i * ldacc;                                                                               \
            if (cols >= PANEL)                                                                                         \
                for (int j = 0; j < PANEL; j++) a[j] += on_grid(out[j], big);                                          \
            else                                                                                                       \
                for (int64_t j = 0; j < cols; j++) a[j] += on_grid(out[j], big);                                       \
        }                                                                                                              \
        return biggest;                                                                                                \
    }
DEFINE_GRAIN(6)
DEFINE_GRAIN(5)
DEFINE_GRAIN(4)
DEFINE_GRAIN(3)
DEFINE_GRAIN(2)
DEFINE_GRAIN(1)

#define SUPER_ROWS 512

/* acc[w] (O, K) += the grid values of D^T X over each grain's rows. Grains are given in row order as (start, end, w);
   `strip` holds SUPER_ROWS or the longest grain, times 16. Returns the largest magnitude of a partial. */
static float NAME(weight_gradient)(int64_t O, int64_t K, const float *D, int64_t ldd, const float *X, int64_t ldx,
                                   int64_t grains, const int64_t *start, const int64_t *end, const int64_t *weight,
                                   double *acc, double big, float *strip) {
    v8 biggest = all8(0.0f);
    for (int64_t first = 0; first < grains;) {
        int64_t last = first + 1;
        while (last < grains && end[last] - start[first] <= SUPER_ROWS) last++;
        const int64_t base = start[first], rows = end[last - 1] - base;
        for (int64_t k = 0; k < K; k += PANEL) {
            const int64_t cols = K - k < PANEL ? K - k : PANEL;
            for (int64_t m = 0; m < rows; m++) {
                float *to = strip + m * PANEL;
                const float *from = X + (base + m) * ldx + k;
                if (cols == PANEL) memcpy(to, from, PANEL * sizeof(float));
                else {
                    memset(to, 0, PANEL * sizeof(float));
                    memcpy(to, from, cols * sizeof(float));
                }
            }
            for (int64_t o = 0; o < O; o += 6)
                for (int64_t g = first; g < last; g++) {
                    const int64_t n = end[g] - start[g], left = O - o < 6 ? O - o : 6;
                    const float *d = D + start[g] * ldd + o, *x = strip + (start[g] - base) * PANEL;
                    double *a = acc + (weight[g] * O + o) * K + k;
                    if (left == 6) biggest = NAME(grain_6)(n, d, ldd, x, a, K, cols, big, biggest);
                    else if (left == 5) biggest = NAME(grain_5)(n, d, ldd, x, a, K, cols, big, biggest);
                    else if (left == 4) biggest = NAME(grain_4)(n, d, ldd, x, a, K, cols, big, biggest);
                    else if (left == 3) biggest = NAME(grain_3)(n, d, ldd, x, a, K, cols, big, biggest);
                    else if (left == 2) biggest = NAME(grain_2)(n, d, ldd, x, a, K, cols, big, biggest);
                    else biggest = NAME(grain_1)(n, d, ldd, x, a, K, cols, big, biggest);
                }
        }
        first = last;
    }
    return biggest8(biggest);
}
