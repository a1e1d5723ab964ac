/* What a row does alone: norms, rotary positions, gates, the router, sums over experts. Elements of type T. */

/* Up to eight elements as lanes, and back; lanes behind the row's end are 0. */
INLINE v8 NAME(get8)(const T *from, int64_t left) {
    float x[8];
    if (left >= 8)
        for (int j = 0; j < 8; j++) x[j] = LOAD(from + j);
    else
        for (int j = 0; j < 8; j++) x[j] = j < left ? LOAD(from + j) : 0.0f;
    return load8(x);
}
INLINE void NAME(put8)(T *to, v8 value, int64_t left) {
    float x[8];
    store8(x, value);
    if (left >= 8)
        for (int j = 0; j < 8; j++) STORE(to + j, x[j]);
    else
        for (int j = 0; j < left; j++) STORE(to + j, x[j]);
}
INLINE v8 NAME(round8)(v8 value) {
    float x[8];
    store8(x, value);
    for (int j = 0; j < 8; j++) x[j] = ROUND(x[j]);
    return load8(x);
}

/* y = w * round((x / sqrt(mean x^2 + eps))); scale_N keeps 1 / sqrt(...) for the gradient. A row's sum is sixteen strided folds, then the fixed
   tree. */
static void NAME(rms_norm)(int64_t N, int64_t H, const T *x, const T *weight, float eps, T *y, float *scale) {
    for (int64_t n = 0; n < N; n++) {
        const T *from = x + n * H;
        v8 even = all8(0.0f), odd = all8(0.0f);
        for (int64_t h = 0; h < H; h += 16) {
            const v8 a = NAME(get8)(from + h, H - h), b = NAME(get8)(from + h + 8, H - h - 8);
            even = fma8(a, a, even);
            odd = fma8(b, b, odd);
        }
        const float r = 1.0f / sqrtf(sum8(even + odd) / (float)H + eps);
        scale[n] = r;
        for (int64_t h = 0; h < H; h += 8)
            NAME(put8)(y + n * H + h, NAME(get8)(weight + h, H - h) * NAME(round8)(NAME(get8)(from + h, H - h) * r), H - h);
    }
}

/* dx, and the weight's partial of each grain (its rows folded in order) on the grid. Returns the largest magnitude of a partial. `work` holds H
   floats, rounded up to a multiple of 8. */
static float NAME(rms_norm_gradient)(int64_t H, const T *dy, const T *x, const T *weight, const float *scale, int64_t grains, const int64_t *start,
                                     const int64_t *end, double big, T *dx, double *acc, float *work) {
    float *partial = work;
    float biggest = 0.0f;
    for (int64_t g = 0; g < grains; g++) {
        memset(partial, 0, (H + 7) / 8 * 8 * sizeof(float));
        for (int64_t n = start[g]; n < end[g]; n++) {
            const T *gy = dy + n * H, *from = x + n * H;
            const float r = scale[n];
            v8 even = all8(0.0f), odd = all8(0.0f);
            for (int64_t h = 0; h < H; h += 16) {
                const int64_t left = H - h, more = left - 8;
                even = fma8(NAME(get8)(gy + h, left) * NAME(get8)(weight + h, left), NAME(get8)(from + h, left) * r, even);
                odd = fma8(NAME(get8)(gy + h + 8, more) * NAME(get8)(weight + h + 8, more), NAME(get8)(from + h + 8, more) * r, odd);
            }
            const v8 mean = all8(sum8(even + odd) / (float)H);
            for (int64_t h = 0; h < H; h += 8) {
                const int64_t left = H - h;
                const v8 normed = NAME(get8)(from + h, left) * r, up = NAME(get8)(gy + h, left);
                NAME(put8)(dx + n * H + h, r * fma8(-normed, mean, up * NAME(get8)(weight + h, left)), left);
                store8(partial + h, fma8(up, NAME(round8)(normed), load8(partial + h)));
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
            const T *at = gate_up + n * 2 * I + i;
            const v8 g = NAME(get8)(at, I - i), s = all8(1.0f) / (all8(1.0f) + exp8(-g));
            NAME(put8)(h + n * I + i, NAME(round8)(g * s) * NAME(get8)(at + I, I - i), I - i);
        }
}
static void NAME(silu_mul_gradient)(int64_t N, int64_t I, const T *dh, const T *gate_up, T *dgate_up) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < I; i += 8) {
            const T *at = gate_up + n * 2 * I + i;
            T *to = dgate_up + n * 2 * I + i;
            const v8 g = NAME(get8)(at, I - i), s = all8(1.0f) / (all8(1.0f) + exp8(-g)), silu = g * s;
            const v8 d = NAME(get8)(dh + n * I + i, I - i), up = NAME(get8)(at + I, I - i);
            NAME(put8)(to + I, d * NAME(round8)(silu), I - i);
            NAME(put8)(to, d * up * (s + silu * (all8(1.0f) - s)), I - i);
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
            v8 even = all8(0.0f), odd = all8(0.0f);
            for (int64_t h = 0; h < H; h += 16) {
                even = fma8(NAME(get8)(up + h, H - h), NAME(get8)(from + h, H - h), even);
                odd = fma8(NAME(get8)(up + h + 8, H - h - 8), NAME(get8)(from + h + 8, H - h - 8), odd);
            }
            for (int64_t h = 0; h < H; h += 8) NAME(put8)(to + h, NAME(get8)(up + h, H - h) * w, H - h);
            STORE(dweights + n * K + k, sum8(even + odd));
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
