/* All kernels for one instruction set, and what is exported of them: SYMBOL(name)(...). */
#define JOIN3(a, b) a##_##b
#define JOIN2(a, b) JOIN3(a, b)

#define NAME(x) JOIN2(SET, x)
#include "matmul.inc.c"
#include "attention.inc.c"
#include "logprob.inc.c"
#undef NAME

#define NAME(x) JOIN2(SET, x##_f32)
#define T float
#define LOAD load_f32
#define STORE store_f32
#define ROUND(x) (x)
#include "rows.inc.c"
#undef NAME
#undef T
#undef LOAD
#undef STORE
#undef ROUND

#define NAME(x) JOIN2(SET, x##_bf16)
#define T bf16
#define LOAD load_bf16
#define STORE store_bf16
#define ROUND(x) round_bf16(x)
#include "rows.inc.c"
#undef NAME
#undef T
#undef LOAD
#undef STORE
#undef ROUND

/* --- exported: t1_SET_name. `type` is 0 for float32, 1 for bfloat16 ---------------------------------------------------------------------------- */

#define NAME(x) JOIN2(SET, x)
#define OUT(x) JOIN2(JOIN2(t1, SET), x)
#define EITHER(type, call, ...) ((type) ? JOIN2(SET, call##_bf16)(__VA_ARGS__) : JOIN2(SET, call##_f32)(__VA_ARGS__))

void OUT(matmul)(int64_t M, int64_t N, int64_t K, int64_t depth, const float *A, const float *B, float *C, int keep) {
    NAME(matmul)(M, N, K, depth, A, K, B, C, N, keep);
}
/* Rows lie by weight: those of w are offset[w]..offset[w + 1]. B holds the weights' panels one after another. */
void OUT(grouped_matmul)(int64_t W, const int64_t *offset, int64_t N, int64_t K, const float *A, const float *B, float *C) {
    const int64_t size = (N + PANEL - 1) / PANEL * PANEL * K;
    for (int64_t w = 0; w < W; w++)
        if (offset[w + 1] > offset[w])
            NAME(matmul)(offset[w + 1] - offset[w], N, K, K, A + offset[w] * K, K, B + w * size, C + offset[w] * N, N, 0);
}
float OUT(weight_gradient)(int64_t O, int64_t K, const float *D, const float *X, int64_t grains, const int64_t *start, const int64_t *end,
                           const int64_t *weight, double *acc, double big, float *strip) {
    return NAME(weight_gradient)(O, K, D, O, X, K, grains, start, end, weight, acc, big, strip);
}
void OUT(attend)(int64_t N, int64_t Q, int64_t G, int64_t D, const float *query, const float *keys, const float *values, const int64_t *first_page,
                 const int64_t *position, float scale, float *out, float *softmax) {
    NAME(attend)(N, Q, G, D, query, keys, values, first_page, position, scale, out, softmax);
}
void OUT(store_rows)(int64_t N, int64_t G, int64_t D, const float *key, const float *value, const int64_t *first_page, const int64_t *position,
                     float *keys, float *values) {
    NAME(store_rows)(N, G, D, key, value, first_page, position, keys, values);
}
void OUT(attention_gradient)(int64_t S, const int64_t *start, const int64_t *length, int64_t Q, int64_t G, int64_t D, int64_t P, const float *query,
                              const float *key, const float *value, const float *out, const float *softmax, const float *dout, float scale, double big,
                              float *dquery, float *dkey, float *dvalue, float *largest, float *work) {
    NAME(attention_gradient)(S, start, length, Q, G, D, P, query, key, value, out, softmax, dout, scale, big, dquery, dkey, dvalue, largest, work);
}
void OUT(logprob)(int64_t R, int64_t V, int64_t H, const float *hidden, const float *head, const int64_t *ids, float temperature, int round,
                  float *logprob, float *entropy, float *softmax, float *work) {
    NAME(logprob)(R, V, H, hidden, head, ids, temperature, round, logprob, entropy, softmax, work);
}
float OUT(logprob_gradient)(int64_t V, int64_t H, const float *hidden, const float *head, const float *head_rows, const int64_t *ids, const float *softmax,
                            const float *upstream, float temperature, int round, int64_t grains, const int64_t *start, const int64_t *end,
                            const int64_t *zero, double big, float *dhidden, double *acc, int64_t most_rows, float *work) {
    return NAME(logprob_gradient)(V, H, hidden, head, head_rows, ids, softmax, upstream, temperature, round, grains, start, end, zero, big, dhidden, acc,
                                  most_rows, work);
}
void OUT(draw)(int64_t R, int64_t V, const float *logits, const float *temperature, const double *uniform, int round, int64_t *token, float *logprob,
               float *entropy, float *work) {
    NAME(draw)(R, V, logits, temperature, uniform, round, token, logprob, entropy, work);
}
void OUT(rms_norm)(int type, int64_t N, int64_t H, const void *x, const void *weight, float eps, void *y, float *scale) {
    EITHER(type, rms_norm, N, H, x, weight, eps, y, scale);
}
float OUT(rms_norm_gradient)(int type, int64_t H, const void *dy, const void *x, const void *weight, const float *scale, int64_t grains,
                             const int64_t *start, const int64_t *end, double big, void *dx, double *acc, float *work) {
    return EITHER(type, rms_norm_gradient, H, dy, x, weight, scale, grains, start, end, big, dx, acc, work);
}
void OUT(rope)(int type, int64_t N, int64_t heads, int64_t D, const void *x, const float *cosine, const float *sine, float sign, void *y) {
    EITHER(type, rope, N, heads, D, x, cosine, sine, sign, y);
}
void OUT(silu_mul)(int type, int64_t N, int64_t I, const void *gate_up, void *h) { EITHER(type, silu_mul, N, I, gate_up, h); }
void OUT(silu_mul_gradient)(int type, int64_t N, int64_t I, const void *dh, const void *gate_up, void *dgate_up) {
    EITHER(type, silu_mul_gradient, N, I, dh, gate_up, dgate_up);
}
void OUT(select_experts)(int type, int64_t N, int64_t E, int64_t K, const void *logits, int64_t *experts, float *work) {
    EITHER(type, select_experts, N, E, K, logits, experts, work);
}
void OUT(gate)(int type, int64_t N, int64_t E, int64_t K, const void *logits, const int64_t *experts, int normalise, void *weights, float *work) {
    EITHER(type, gate, N, E, K, logits, experts, normalise, weights, work);
}
void OUT(gate_gradient)(int type, int64_t N, int64_t E, int64_t K, const void *logits, const int64_t *experts, int normalise, const void *dweights,
                        void *dlogits, float *work) {
    EITHER(type, gate_gradient, N, E, K, logits, experts, normalise, dweights, dlogits, work);
}
void OUT(combine)(int type, int64_t N, int64_t K, int64_t H, const void *rows, const int64_t *place, const void *weights, void *out) {
    EITHER(type, combine, N, K, H, rows, place, weights, out);
}
void OUT(combine_gradient)(int type, int64_t N, int64_t K, int64_t H, const void *dout, const void *rows, const int64_t *place, const void *weights,
                           void *drows, void *dweights) {
    EITHER(type, combine_gradient, N, K, H, dout, rows, place, weights, drows, dweights);
}
float OUT(embedding_gradient)(int type, int64_t N, int64_t H, const void *dx, const int64_t *ids, double big, double *acc) {
    return EITHER(type, embedding_gradient, N, H, dx, ids, big, acc);
}
