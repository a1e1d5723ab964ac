/* Log-probabilities of chosen tokens, tile by tile over the vocabulary: no row of logits is ever whole in memory, in either direction.

   A row's softmax is folded over tiles of 256 words from left to right, a tile's sum through fixed lanes; so the sampler, which has a row's
   logits, and the trainer, which has a row's hidden state, come to the same bits. */

#define TILE_WORDS 256
#define TILE_ROWS 96

/* m: highest scaled logit so far; l: sum of e^(s - m); e: sum of e^(s - m) (s - m). */
typedef struct { float m, l, e; } NAME(Softmax);

INLINE NAME(Softmax) NAME(fold_tile)(NAME(Softmax) row, const float *scaled, int64_t words) {
    v8 s[TILE_WORDS / 8], highest = all8(-INFINITY), sum = all8(0.0f), mean = all8(0.0f);
    float padded[TILE_WORDS];
    if (words < TILE_WORDS) {
        for (int64_t w = 0; w < TILE_WORDS; w++) padded[w] = w < words ? scaled[w] : -INFINITY;
        scaled = padded;
    }
    for (int j = 0; j < TILE_WORDS / 8; j++) {
        s[j] = load8(scaled + 8 * j);
        highest = max8(s[j], highest);
    }
    const float mb = biggest8(highest), m = mb > row.m ? mb : row.m;
    for (int j = 0; j < TILE_WORDS / 8; j++) {
        const v8 shifted = s[j] - m, p = exp8(shifted);
        sum = sum + p;
        mean = fma8(p, max8(shifted, all8(-104.0f)), mean);
    }
    if (!(row.l == 0.0f)) { /* so that a NaN in an earlier tile stays */
        const float a = exp1(row.m - m);
        row.e = a * (row.e + (row.m - m) * row.l) + sum8(mean);
        row.l = a * row.l + sum8(sum);
    } else {
        row.e = sum8(mean);
        row.l = sum8(sum);
    }
    row.m = m;
    return row;
}

INLINE void NAME(scale_tile)(float *logits, int64_t words, float temperature, int round) {
    if (round)
        for (int64_t w = 0; w < words; w++) logits[w] = round_bf16(logits[w]);
    if (temperature != 1.0f)
        for (int64_t w = 0; w < words; w++) logits[w] = logits[w] / temperature;
}

/* From hidden states (R, H) and the packed head: log-prob of ids, entropy, and the softmax as (m, l). `work` holds TILE_ROWS * TILE_WORDS floats. */
static void NAME(logprob)(int64_t R, int64_t V, int64_t H, const float *hidden, const float *head, const int64_t *ids, float temperature, int round,
                          float *logprob, float *entropy, float *softmax, float *work) {
    for (int64_t top = 0; top < R; top += TILE_ROWS) {
        const int64_t rows = R - top < TILE_ROWS ? R - top : TILE_ROWS;
        NAME(Softmax) row[TILE_ROWS];
        float chosen[TILE_ROWS];
        for (int64_t r = 0; r < rows; r++) row[r] = (NAME(Softmax)){-INFINITY, 0.0f, 0.0f};
        for (int64_t v = 0; v < V; v += TILE_WORDS) {
            const int64_t words = V - v < TILE_WORDS ? V - v : TILE_WORDS;
            NAME(matmul)(rows, words, H, H, hidden + top * H, H, head + v * H, work, TILE_WORDS, 0);
            for (int64_t r = 0; r < rows; r++) {
                float *tile = work + r * TILE_WORDS;
                const int64_t at = ids[top + r] - v;
                NAME(scale_tile)(tile, words, temperature, round);
                if (at >= 0 && at < words) chosen[r] = tile[at];
                row[r] = NAME(fold_tile)(row[r], tile, words);
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            const float total = log1(row[r].l);
            logprob[top + r] = (chosen[r] - row[r].m) - total;
            entropy[top + r] = total - row[r].e / row[r].l;
            softmax[2 * (top + r)] = row[r].m;
            softmax[2 * (top + r) + 1] = row[r].l;
        }
    }
}

/* Gradients to the hidden states and, on the grid, to the head (V, H); rows come in grains. head_rows is the head packed for products over V.
   `work` holds (SUPER_ROWS or the longest grain) * (TILE_WORDS + 16) floats. Returns the largest magnitude of a partial. */
static float NAME(logprob_gradient)(int64_t V, int64_t H, const float *hidden, const float *head, const float *head_rows, const int64_t *ids,
                                    const float *softmax, const float *upstream, float temperature, int round, int64_t grains,
                                    const int64_t *start, const int64_t *end, const int64_t *zero, double big, float *dhidden, double *acc,
                                    int64_t most_rows, float *work) {
    float *slope = work, *strip = work + most_rows * TILE_WORDS, biggest = 0.0f;
    for (int64_t first = 0; first < grains;) {
        int64_t last = first + 1, shifted_start[SUPER_ROWS], shifted_end[SUPER_ROWS];
        while (last < grains && last - first < SUPER_ROWS && end[last] - start[first] <= SUPER_ROWS) last++;
        const int64_t base = start[first], rows = end[last - 1] - base;
        for (int64_t g = first; g < last; g++) {
            shifted_start[g - first] = start[g] - base;
            shifted_end[g - first] = end[g] - base;
        }
        for (int64_t v = 0; v < V; v += TILE_WORDS) {
            const int64_t words = V - v < TILE_WORDS ? V - v : TILE_WORDS;
            NAME(matmul)(rows, words, H, H, hidden + base * H, H, head + v * H, slope, TILE_WORDS, 0);
            for (int64_t r = 0; r < rows; r++) {
                float *tile = slope + r * TILE_WORDS;
                const float m = softmax[2 * (base + r)], l = softmax[2 * (base + r) + 1], up = upstream[base + r] / temperature;
                const int64_t at = ids[base + r] - v;
                NAME(scale_tile)(tile, words, temperature, round);
                for (int64_t w = 0; w < words; w += 8) {
                    float part[8] = {0};
                    const int64_t left = words - w < 8 ? words - w : 8;
                    memcpy(part, tile + w, left * sizeof(float));
                    store8(part, exp8(load8(part) - m) / l * -up);
                    memcpy(tile + w, part, left * sizeof(float));
                }
                if (at >= 0 && at < words) tile[at] += up;
                if (round)
                    for (int64_t w = 0; w < words; w++) tile[w] = round_bf16(tile[w]);
            }
            NAME(matmul)(rows, H, words, V, slope, TILE_WORDS, head_rows + v * PANEL, dhidden + base * H, H, v > 0);
            const float size = NAME(weight_gradient)(words, H, slope, TILE_WORDS, hidden + base * H, H, last - first, shifted_start, shifted_end,
                                                     zero, acc + v * H, big, strip);
            biggest = size > biggest ? size : biggest;
        }
        first = last;
    }
    return biggest;
}

/* From whole rows of logits (R, V): one token a row by inverting the cumulative distribution at uniform (R) of [0, 1), temperature 0 takes the
   highest; log-prob and entropy as above, of temperature 1 for a greedy row. `work` holds V floats. */
static void NAME(draw)(int64_t R, int64_t V, const float *logits, const float *temperature, const double *uniform, int round, int64_t *token,
                       float *logprob, float *entropy, float *work) {
    for (int64_t r = 0; r < R; r++) {
        NAME(Softmax) row = {-INFINITY, 0.0f, 0.0f};
        const int greedy = temperature[r] == 0.0f;
        memcpy(work, logits + r * V, V * sizeof(float));
        NAME(scale_tile)(work, V, greedy ? 1.0f : temperature[r], round);
        for (int64_t v = 0; v < V; v += TILE_WORDS)
            row = NAME(fold_tile)(row, work + v, V - v < TILE_WORDS ? V - v : TILE_WORDS);
        int64_t best = 0;
        if (greedy) {
            for (int64_t v = 1; v < V; v++)
                if (work[v] > work[best]) best = v;
        } else {
            double total = 0.0, sum = 0.0;
            for (int pass = 0; pass < 2; pass++) {
                const double target = total * uniform[r];
                sum = 0.0;
                for (int64_t v = 0; v < V; v += 8) {
                    float part[8];
                    const int64_t left = V - v < 8 ? V - v : 8;
                    for (int64_t j = 0; j < 8; j++) part[j] = j < left ? work[v + j] : -INFINITY;
                    store8(part, exp8(load8(part) - row.m));
                    for (int64_t j = 0; j < left; j++) {
                        sum += part[j];
                        if (pass == 1 && sum > target) {
                            best = v + j;
                            goto found;
                        }
                    }
                }
                total = sum;
            }
            found:;
        }
        const float total = log1(row.l);
        token[r] = best;
        logprob[r] = (work[best] - row.m) - total;
        entropy[r] = total - row.e / row.l;
    }
}
