/* For any processor. Slow where the processor has no fused multiply-add: then each one is a call. */
#include "lanes.h"
#define SET portable
#include "kernels.inc.c"

/* --- what does not depend on an instruction set ------------------------------------------------------------------------------------------------- */

/* B's panels from a matrix (N, K) of which B is the transpose: panels (ceil(N / 16), K, 16). */
void t1_pack_transposed(int64_t N, int64_t K, const float *W, float *B) {
    for (int64_t n = 0; n < N; n += PANEL)
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < PANEL; j++) *B++ = n + j < N ? W[(n + j) * K + k] : 0.0f;
}
/* B's panels from B itself (K, N). */
void t1_pack(int64_t N, int64_t K, const float *W, float *B) {
    for (int64_t n = 0; n < N; n += PANEL)
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < PANEL; j++) *B++ = n + j < N ? W[k * N + n + j] : 0.0f;
}
/* Rows by expert, a stable counting sort: offset (E + 1), token (N * K) of each sorted row, place (N, K) of each pair among the sorted rows. */
void t1_dispatch(int64_t N, int64_t K, int64_t E, const int64_t *experts, int64_t *offset, int64_t *token, int64_t *place) {
    memset(offset, 0, (E + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < N * K; i++) offset[experts[i] + 1]++;
    for (int64_t e = 0; e < E; e++) offset[e + 1] += offset[e];
    for (int64_t i = 0; i < N * K; i++) {
        const int64_t at = offset[experts[i]]++;
        token[at] = i / K;
        place[i] = at;
    }
    for (int64_t e = E; e > 0; e--) offset[e] = offset[e - 1];
    offset[0] = 0;
}
/* As INTERFACE in library.py: which functions there are and what they take. */
int t1_interface(void) { return 1; }
int t1_has_avx2(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}
