/* What a row does alone: norms, rotary positions, gates, the router, sums over experts. Elements of type T. */

/* Sixteen strided folds over the row, then the fixed tree: a row's sum whatever its neighbours are. */
INLINE float NAME(join)(v8 a, v8 b) { return sum8(a + b); }

/* y = w * round((x / sqrt(mean x^2 + eps))); scale_N keeps 1 / sqrt(...) for the gradient. */
static void NAME(rms_norm)(int64_t N, int64_t H, const T *x, const T *weight, float eps, T *y, float *scale) {
    for (int64_t n = 0; n < N; n++) {
        const T *from = x + n * H;
        T *to = y + n * H;
        float squares[16] = {0};
        for (int64_t h = 0; h < H; h += 16)
            for (int64_t j = 0; j < 16 && h + j < H; j++) {
                const float v = LOAD(from + h + j);
                squares[j] = __builtin_fmaf(v, v, squares[j]);
            }
        const float r = 1.0f / sqrtf(NAME(join)(load8(squares), load8(squares + 8)) / (float)H + eps);
        scale[n] = r;
        for (int64_t h = 0; h < H; h++) STORE(to + h, LOAD(weight + h) * ROUND(LOAD(from + h) * r));
    }
}

/* dx, and the weight's partial of each grain (its rows folded in order) on the grid. Returns the largest magnitude of a partial. */
static float NAME(rms_norm_gradient)(int64_t H, const T *dy, const T *x, const T *weight, const float *scale, int64_t grains, const int64_t *start,
                                     const int64_t *end, double big, T *dx, double *acc, float *work) {
    float *partial = work;
    float biggest = 0.0f;
    for (int64_t g = 0; g < grains; g++) {
        memset(partial, 0, H * sizeof(float));
        for (int64_t n = start[g]; n < end[g]; n++) {
            const T *gy = dy + n * H, *from = x + n * H;
            T *to = dx + n * H;
            const float r = scale[n];
            float dots[16] = {0};
            for (int64_t h = 0; h < H; h += 16)
                for (int64_t j = 0; j < 16 && h + j < H; j++)
                    dots[j] = __builtin_fmaf(LOAD(gy + h + j) * LOAD(weight + h + j), LOAD(from + h + j) * r, dots[j]);
            const float mean = NAME(join)(load8(dots), load8(dots + 8)) / (float)H;
            for (int64_t h = 0; h < H; h++) {
                const float normed = LOAD(from + h) * r, up = LOAD(gy + h);
                STORE(to + h, r * __builtin_fmaf(-normed, mean, up * LOAD(weight + h)));
                partial[h] = __builtin_fmaf(up, ROUND(normed), partial[h]);
            }
        }
        for (int64_t h = 0; h < H; h++) {
            const float size = fabsf(partial[h]);
            biggest = size > biggest ? size : biggest;
            acc[h] += on_grid(partial[h], big);
        }
    }
    return biggest;
}

/* Rotates each of the `heads` heads of a row by the row's angles (N, D): y = x cos + rotated(x) sin, halves swapped and the first negated.
   With sign -1 it is the gradient. */
static void NAME(rope)(int64_t N, int64_t heads, int64_t D, const T *x, const float *cosine, const float *sine, float sign, T *y) {
    const int64_t half = D / 2;
    for (int64_t n = 0; n < N; n++)
        for (int64_t h = 0; h < heads; h++) {
            const T *from = x + (n * heads + h) * D;
            T *to = y + (n * heads + h) * D;
            const float *c = cosine + n * D, *s = sine + n * D;
            if (sign > 0)
                for (int64_t d = 0; d < half; d++) {
                    const float a = LOAD(from + d), b = LOAD(from + half + d);
                    STORE(to + d, a * c[d] - b * s[d]);
                    STORE(to + half + d, b * c[half + d] + a * s[half + d]);
                }
            else
                for (int64_t d = 0; d < half; d++) {
                    const float a = LOAD(from + d), b = LOAD(from + half + d);
                    STORE(to + d, a * c[d] + b * s[half + d]);
                    STORE(to + half + d, b * c[half + d] - a * s[d]);
                }
        }
}

/* h = silu(gate) * up over rows (N, 2 I): the gate first. */
static void NAME(silu_mul)(int64_t N, int64_t I, const T *gate_up, T *h) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < I; i += 8) {
            float g[8] = {0}, s[8];
            const int64_t left = I - i < 8 ? I - i : 8;
            for (int64_t j = 0; j < left; j++) g[j] = LOAD(gate_up + n * 2 * I + i + j);
            store8(s, all8(1.0f) / (all8(1.0f) + exp8(-load8(g))));
            for (int64_t j = 0; j < left; j++)
                STORE(h + n * I + i + j, ROUND(g[j] * s[j]) * LOAD(gate_up + n * 2 * I + I + i + j));
        }
}
static void NAME(silu_mul_gradient)(int64_t N, int64_t I, const T *dh, const T *gate_up, T *dgate_up) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < I; i += 8) {
            float g[8] = {0}, s[8];
            const int64_t left = I - i < 8 ? I - i : 8, at = n * 2 * I + i;
            for (int64_t j = 0; j < left; j++) g[j] = LOAD(gate_up + at + j);
            store8(s, all8(1.0f) / (all8(1.0f) + exp8(-load8(g))));
            for (int64_t j = 0; j < left; j++) {
                const float d = LOAD(dh + n * I + i + j), up = LOAD(gate_up + at + I + j), silu = g[j] * s[j];
                STORE(dgate_up + at + I + j, d * ROUND(silu));
                STORE(dgate_up + at + j, d * up * (s[j] + silu * (1.0f - s[j])));
            }
        }
}

/* --- the router: softmax over all experts in float32, then the k best, in ascending order of expert ------------------------------------------------- */

INLINE void NAME(softmax_row)(int64_t E, const T *logits, float *p) {
    float m = -INFINITY, total = 0.0f;
    for (int64_t e = 0; e < E; e++) {
        p[e] = LOAD(logits + e);
        m = p[e] > m ? p[e] : m;
    }
    for (int64_t e = 0; e < E; e++) {
        p[e] = exp1(p[e] - m);
        total += p[e];
    }
    for (int64_t e = 0; e < E; e++) p[e] = p[e] / total;
}

/* experts (N, K) int64: the K of highest probability, of equals the lowest; ascending. `work` holds E floats. */
static void NAME(select_experts)(int64_t N, int64_t E, int64_t K, const T *logits, int64_t *experts, float *work) {
    for (int64_t n = 0; n < N; n++) {
        int64_t *to = experts + n * K;
        NAME(softmax_row)(E, logits + n * E, work);
        for (int64_t k = 0; k < K; k++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++)
                if (work[e] >= 0.0f && (best < 0 || work[e] > work[best])) best = e;
            if (best < 0) best = k; /* logits that are not numbers: whoever reads the log-probs sees it */
            work[best] = -1.0f;
            int64_t at = k;
            for (; at > 0 && to[at - 1] > best; at--) to[at] = to[at - 1];
            to[at] = best;
        }
    }
}

/* weights (N, K) of the given experts: their share of the softmax, over the K alone when `normalise`. */
static void NAME(gate)(int64_t N, int64_t E, int64_t K, const T *logits, const int64_t *experts, int normalise, T *weights, float *work) {
    for (int64_t n = 0; n < N; n++) {
        NAME(softmax_row)(E, logits + n * E, work);
        float total = 0.0f;
        for (int64_t k = 0; k < K; k++) total += work[experts[n * K + k]];
        for (int64_t k = 0; k < K; k++) {
            const float p = work[experts[n * K + k]];
            STORE(weights + n * K + k, normalise ? p / total : p);
        }
    }
}
static void NAME(gate_gradient)(int64_t N, int64_t E, int64_t K, const T *logits, const int64_t *experts, int normalise, const T *dweights,
                                T *dlogits, float *work) {
    float *p = work, *dp = work + E;
    for (int64_t n = 0; n < N; n++) {
        const int64_t *chosen = experts + n * K;
        const T *dw = dweights + n * K;
        NAME(softmax_row)(E, logits + n * E, p);
        float total = 0.0f, inner = 0.0f, mean = 0.0f;
        for (int64_t k = 0; k < K; k++) total += p[chosen[k]];
        for (int64_t k = 0; k < K; k++) inner += LOAD(dw + k) * (p[chosen[k]] / total);
        memset(dp, 0, E * sizeof(float));
        for (int64_t k = 0; k < K; k++) dp[chosen[k]] = normalise ? (LOAD(dw + k) - inner) / total : LOAD(dw + k);
        for (int64_t e = 0; e < E; e++) mean += p[e] * dp[e];
        for (int64_t e = 0; e < E; e++) STORE(dlogits + n * E + e, p[e] * (dp[e] - mean));
    }
}

/* out (N, H) = sum over k = 0, 1, ... of weights (N, K) * rows[place (N, K)]; without weights each counts once. Folded in float32. */
static void NAME(combine)(int64_t N, int64_t K, int64_t H, const T *rows, const int64_t *place, const T *weights, T *out) {
    for (int64_t n = 0; n < N; n++) {
        T *to = out + n * H;
        for (int64_t top = 0; top < H; top += 64) {
            float sum[64] = {0};
            const int64_t left = H - top < 64 ? H - top : 64;
            for (int64_t k = 0; k < K; k++) {
                const T *from = rows + place[n * K + k] * H + top;
                const float w = weights ? LOAD(weights + n * K + k) : 1.0f;
                if (left == 64)
                    for (int h = 0; h < 64; h++) sum[h] = __builtin_fmaf(LOAD(from + h), w, sum[h]);
                else
                    for (int64_t h = 0; h < left; h++) sum[h] = __builtin_fmaf(LOAD(from + h), w, sum[h]);
            }
            for (int64_t h = 0; h < left; h++) STORE(to + top + h, sum[h]);
        }
    }
}
static void NAME(combine_gradient)(int64_t N, int64_t K, int64_t H, const T *dout, const T *rows, const int64_t *place, const T *weights,
                                   T *drows, T *dweights) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            const T *from = rows + place[n * K + k] * H, *up = dout + n * H;
            T *to = drows + place[n * K + k] * H;
            const float w = LOAD(weights + n * K + k);
            float dots[16] = {0};
            for (int64_t h = 0; h < H; h += 16)
                for (int64_t j = 0; j < 16 && h + j < H; j++)
                    dots[j] = __builtin_fmaf(LOAD(up + h + j), LOAD(from + h + j), dots[j]);
            for (int64_t h = 0; h < H; h++) STORE(to + h, LOAD(up + h) * w);
            STORE(dweights + n * K + k, NAME(join)(load8(dots), load8(dots + 8)));
        }
}

/* acc (V, H) += the grid value of each row of dx, at the row's id. */
static float NAME(embedding_gradient)(int64_t N, int64_t H, const T *dx, const int64_t *ids, double big, double *acc) {
    float biggest = 0.0f;
    for (int64_t n = 0; n < N; n++)
        for (int64_t h = 0; h < H; h++) {
            const float v = LOAD(dx + n * H + h), size = fabsf(v);
            biggest = size > biggest ? size : biggest;
            acc[ids[n] * H + h] += on_grid(v, big);
        }
    return biggest;
}
