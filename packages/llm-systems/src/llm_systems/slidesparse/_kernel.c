/* y = W x for float32 weights with zeros, made for patterns that keep 2N-2 of every 2N inputs.
 *
 * Rows are cut into chunks whose accumulators stay in the second-level cache, inputs into tiles of at
 * most 64. In each tile of a chunk the rows are paired so that the two keep mostly the same inputs. A
 * pair holds three 64-bit words (inputs of both rows, of the first alone, of the second alone), the two
 * row numbers, and its values in the order: both inputs of the first row, of the second, the rest of
 * the first, of the second. Pairs are sorted by how many inputs they share, so that loops run equally
 * long for long; values, words and row numbers are pure streams.
 *
 * Many tokens: inputs lie as panels [input][token]; a weight is broadcast and multiplied with whole
 * vectors of tokens. What limits this is reading the panel, one vector a multiplication; inputs that a
 * pair shares are read once for two rows.
 *
 * Few tokens: the stored values are expanded to their places and multiplied with the inputs of a
 * token, which reads 0.80 of the bytes of a dense 6:8 weight.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 1024 /* rows of a chunk */
#define TILE 64   /* most inputs of a tile */
#define STEP 4    /* a pair shares a multiple of this: fewer lengths of loops, and unrolled ones */
#define FEW 4     /* most tokens of the kernel for few tokens */
#define AVX512 "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi,bmi2,fma,popcnt"
#define AVX2 "avx2,bmi,bmi2,fma,popcnt"
#define INLINE(target_) __attribute__((target(target_), always_inline)) static inline

typedef struct {
    const float *values;
    const uint64_t *masks;  /* [chunks][tiles][pairs of a chunk][3] */
    const uint16_t *rows;   /* [chunks][tiles][pairs of a chunk][2], counted from the chunk's first */
    const int64_t *starts;  /* [chunks]: where the values of a chunk begin */
    int64_t inputs, outputs, tile;
} weight;

typedef struct {
    weight w;
    const float *x, *bias;
    float *y;
    int64_t tokens, x_stride;
} job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void *allocate(size_t bytes) {
    void *found = NULL;
    return posix_memalign(&found, 64, bytes ? bytes : 64) ? NULL : found;
}

/* Pair the rows of one tile: each with the free row that shares most inputs with it. */
__attribute__((target("popcnt"))) static void pair_rows(const uint64_t *kept, int64_t rows,
                                                        uint64_t *masks, uint16_t *numbers) {
    uint16_t next[ROWS], by_count[ROWS][2];
    int64_t count_of[ROWS], begin[TILE + 2] = {0};
    int64_t free_rows = rows, pairs = 0;
    for (int64_t r = 0; r < rows; r++) next[r] = (uint16_t)r;
    while (free_rows > 1) {
        const uint16_t first = next[--free_rows];
        int64_t best = -1, at = 0;
        for (int64_t i = 0; i < free_rows; i++) {
            const int64_t shared = __builtin_popcountll(kept[first] & kept[next[i]]);
            if (shared > best) best = shared, at = i;
        }
        by_count[pairs][0] = first, by_count[pairs][1] = next[at];
        count_of[pairs++] = best;
        begin[TILE - best + 1]++;
        next[at] = next[--free_rows];
    }
    for (int64_t c = 0; c <= TILE; c++) begin[c + 1] += begin[c];
    for (int64_t p = 0; p < pairs; p++) {
        const int64_t to = begin[TILE - count_of[p]]++;
        const uint64_t a = kept[by_count[p][0]], b = kept[by_count[p][1]];
        uint64_t both = a & b;
        for (int64_t extra = count_of[p] % STEP; extra; extra--)
            both &= ~(1ull << (63 - __builtin_clzll(both)));
        masks[3 * to] = both, masks[3 * to + 1] = a & ~both, masks[3 * to + 2] = b & ~both;
        numbers[2 * to] = by_count[p][0], numbers[2 * to + 1] = by_count[p][1];
    }
    if (free_rows) { /* an odd row out, beside a row of accumulators that nobody reads */
        masks[3 * pairs] = 0, masks[3 * pairs + 1] = kept[next[0]], masks[3 * pairs + 2] = 0;
        numbers[2 * pairs] = next[0], numbers[2 * pairs + 1] = (uint16_t)rows;
    }
}

static float *gather(float *to, const float *from, uint64_t mask) {
    for (; mask; mask &= mask - 1) *to++ = from[__builtin_ctzll(mask)];
    return to;
}

/* [tokens][inputs] -> [inputs][width], zero for tokens past the end. */
INLINE(AVX2) void transpose8(__m256 v[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) {
        u[4 * h] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0x44);
        u[4 * h + 1] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0xEE);
        u[4 * h + 2] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0x44);
        u[4 * h + 3] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
        v[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
    }
}

__attribute__((target(AVX2))) static void pack(const job *j, int64_t first, int64_t tokens,
                                               int64_t width, int64_t from, int64_t to, float *panel) {
    const float *x = j->x + first * j->x_stride;
    int64_t c = from;
    for (; c + 8 <= to; c += 8)
        for (int64_t t = 0; t < width; t += 8) {
            __m256 v[8];
            for (int64_t i = 0; i < 8; i++)
                v[i] = t + i < tokens ? _mm256_loadu_ps(x + (t + i) * j->x_stride + c)
                                      : _mm256_setzero_ps();
            transpose8(v);
            for (int64_t i = 0; i < 8; i++) _mm256_store_ps(panel + (c + i) * width + t, v[i]);
        }
    for (; c < to; c++)
        for (int64_t t = 0; t < width; t++)
            panel[c * width + t] = t < tokens ? x[t * j->x_stride + c] : 0.0f;
}

/* [rows][width] -> y[tokens][outputs], with the bias. */
__attribute__((target(AVX2))) static void unpack(const job *j, int64_t first, int64_t tokens,
                                                 int64_t width, int64_t row, int64_t rows,
                                                 const float *sums) {
    const int64_t stride = j->w.outputs;
    float *y = j->y + first * stride + row;
    const float *bias = j->bias ? j->bias + row : NULL;
    int64_t r = 0;
    for (; r + 16 <= rows; r += 16)
        for (int64_t t = 0; t < tokens; t += 8) {
            __m256 low[8], high[8];
            for (int64_t i = 0; i < 8; i++) {
                low[i] = _mm256_load_ps(sums + (r + i) * width + t);
                high[i] = _mm256_load_ps(sums + (r + 8 + i) * width + t);
            }
            transpose8(low);
            transpose8(high);
            for (int64_t i = 0; i < 8 && t + i < tokens; i++) { /* a whole line at once */
                float *to = y + (t + i) * stride + r;
                if (bias) {
                    low[i] = _mm256_add_ps(low[i], _mm256_loadu_ps(bias + r));
                    high[i] = _mm256_add_ps(high[i], _mm256_loadu_ps(bias + r + 8));
                }
                _mm256_storeu_ps(to, low[i]);
                _mm256_storeu_ps(to + 8, high[i]);
            }
        }
    for (; r < rows; r++)
        for (int64_t t = 0; t < tokens; t++)
            y[t * stride + r] = sums[r * width + t] + (bias ? bias[r] : 0.0f);
}

/* One body for each instruction set and each panel width of `n` vectors. The multiplications are
 * written out because compilers read a shared input twice or copy accumulators about. */
#define EACH(n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
#define FMA(sum, w, x) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x))
#define FMA_MEM(sum, w, x) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(w), "m"(x))
#define PANEL(NAME, TARGET, LANES)                                                                    \
    typedef float NAME##_v __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));               \
    INLINE(TARGET) NAME##_v NAME##_all(float x) { return x - (NAME##_v){0}; }                         \
    INLINE(TARGET) const NAME##_v *NAME##_next(const float *inputs, uint64_t *mask, int64_t width) {  \
        const NAME##_v *in = (const NAME##_v *)(inputs + (int64_t)__builtin_ctzll(*mask) * width);    \
        __asm__("" : "+r"(in)); /* one register: operands with an index cost a second slot */         \
        *mask &= *mask - 1;                                                                           \
        return in;                                                                                    \
    }                                                                                                 \
    INLINE(TARGET) void NAME##_body(const weight *weights, const float *restrict panel,               \
                                    float *restrict sums, int64_t chunk, const int n) {               \
        const int64_t width = n * LANES, tiles = up(weights->inputs, weights->tile);                  \
        const int64_t pairs = up(least(ROWS, weights->outputs - chunk * ROWS), 2);                    \
        /* Enough chains of sums to hide how long a multiplication takes. */                          \
        const int sets = n == 1 ? 4 : n <= 4 ? 2 : 1;                                                 \
        const uint64_t *mask = weights->masks + chunk * tiles * (ROWS / 2) * 3;                       \
        const uint16_t *rows = weights->rows + chunk * tiles * (ROWS / 2) * 2;                        \
        const float *w = weights->values + weights->starts[chunk];                                    \
        for (int64_t t = 0; t < tiles; t++) {                                                         \
            const float *inputs = panel + t * weights->tile * width;                                  \
            for (int64_t p = 0; p < pairs; p++, mask += 3, rows += 2) {                               \
                NAME##_v *to_a = (NAME##_v *)(sums + rows[0] * width), a[8];                          \
                NAME##_v *to_b = (NAME##_v *)(sums + rows[1] * width), b[8];                          \
                uint64_t both = mask[0], one = mask[1], two = mask[2];                                \
                const int64_t shared = __builtin_popcountll(both);                                    \
                const int64_t rest_a = __builtin_popcountll(one), rest_b = __builtin_popcountll(two); \
                EACH(n * sets) a[i] = (NAME##_v){0};                                                  \
                EACH(n * sets) b[i] = (NAME##_v){0};                                                  \
                for (int64_t s = 0; s < shared; s += STEP) {                                          \
                    _Pragma("GCC unroll 4") for (int u = 0; u < STEP; u++) {                          \
                        const NAME##_v *in = NAME##_next(inputs, &both, width);                       \
                        const NAME##_v first = NAME##_all(w[s + u]);                                  \
                        const NAME##_v second = NAME##_all(w[shared + s + u]);                        \
                        EACH(n) {                                                                     \
                            const NAME##_v x = in[i];                                                 \
                            FMA(a[u % sets * n + i], first, x);                                       \
                            FMA(b[u % sets * n + i], second, x);                                      \
                        }                                                                             \
                    }                                                                                 \
                }                                                                                     \
                w += 2 * shared;                                                                      \
                EACH(n * sets - n) a[i % n] += a[n + i];                                              \
                EACH(n * sets - n) b[i % n] += b[n + i];                                              \
                const int64_t common = least(rest_a, rest_b);                                         \
                _Pragma("GCC unroll 2") for (int64_t s = 0; s < common; s++) {                        \
                    const NAME##_v *in = NAME##_next(inputs, &one, width);                            \
                    const NAME##_v first = NAME##_all(w[s]);                                          \
                    EACH(n) FMA_MEM(a[i], first, in[i]);                                              \
                    in = NAME##_next(inputs, &two, width);                                            \
                    const NAME##_v second = NAME##_all(w[rest_a + s]);                                \
                    EACH(n) FMA_MEM(b[i], second, in[i]);                                             \
                }                                                                                     \
                for (int64_t s = common; s < rest_a; s++) {                                           \
                    const NAME##_v *in = NAME##_next(inputs, &one, width);                            \
                    const NAME##_v first = NAME##_all(w[s]);                                          \
                    EACH(n) FMA_MEM(a[i], first, in[i]);                                              \
                }                                                                                     \
                for (int64_t s = common; s < rest_b; s++) {                                           \
                    const NAME##_v *in = NAME##_next(inputs, &two, width);                            \
                    const NAME##_v second = NAME##_all(w[rest_a + s]);                                \
                    EACH(n) FMA_MEM(b[i], second, in[i]);                                             \
                }                                                                                     \
                w += rest_a + rest_b;                                                                 \
                if (t) {                                                                              \
                    EACH(n) to_a[i] += a[i];                                                          \
                    EACH(n) to_b[i] += b[i];                                                          \
                } else {                                                                              \
                    EACH(n) to_a[i] = a[i];                                                           \
                    EACH(n) to_b[i] = b[i];                                                           \
                }                                                                                     \
            }                                                                                         \
        }                                                                                             \
    }                                                                                                 \
    __attribute__((target(TARGET))) static void NAME(const weight *w, const float *panel,             \
                                                     float *sums, int64_t chunk, int n) {             \
        switch (n) {                                                                                  \
        case 1: NAME##_body(w, panel, sums, chunk, 1); break;                                         \
        case 2: NAME##_body(w, panel, sums, chunk, 2); break;                                         \
        case 3: NAME##_body(w, panel, sums, chunk, 3); break;                                         \
        case 4: NAME##_body(w, panel, sums, chunk, 4); break;                                         \
        case 5: NAME##_body(w, panel, sums, chunk, 5); break;                                         \
        case 6: NAME##_body(w, panel, sums, chunk, 6); break;                                         \
        case 7: NAME##_body(w, panel, sums, chunk, 7); break;                                         \
        default: NAME##_body(w, panel, sums, chunk, 8); break;                                        \
        }                                                                                             \
    }

PANEL(panel_avx512, AVX512, 16)
PANEL(panel_avx2, AVX2, 8)

/* Put the next values of a row into the places that `mask` names, on top of `dense`. */
INLINE(AVX512) const float *place(__m512 *dense, uint64_t mask, const float *w) {
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {
        const uint16_t part = (uint16_t)(mask >> (16 * q));
        dense[q] = _mm512_mask_expandloadu_ps(dense[q], part, w);
        w += __builtin_popcount(part);
    }
    return w;
}

/* x lies as [tile][token][64], zero where a tile is narrower. */
INLINE(AVX512) void few_body(const job *j, const float *restrict x, float *restrict sums,
                             int64_t chunk, const int m) {
    const weight *weights = &j->w;
    const int64_t row = chunk * ROWS, rows_here = least(ROWS, weights->outputs - row);
    const int64_t tiles = up(weights->inputs, weights->tile), pairs = up(rows_here, 2);
    const uint64_t *mask = weights->masks + chunk * tiles * (ROWS / 2) * 3;
    const uint16_t *rows = weights->rows + chunk * tiles * (ROWS / 2) * 2;
    const float *w = weights->values + weights->starts[chunk];
    for (int64_t t = 0; t < tiles; t++) {
        const float *inputs = x + t * m * TILE;
        for (int64_t p = 0; p < pairs; p++, mask += 3, rows += 2) {
            const __m512 zero = _mm512_setzero_ps();
            __m512 dense[2][4] = {{zero, zero, zero, zero}, {zero, zero, zero, zero}};
            w = place(dense[0], mask[0], w);
            w = place(dense[1], mask[0], w);
            w = place(dense[0], mask[1], w);
            w = place(dense[1], mask[2], w);
            _Pragma("GCC unroll 2") for (int side = 0; side < 2; side++) EACH(m) {
                float *out = sums + (rows[side] * m + i) * 16;
                __m512 a = t ? _mm512_load_ps(out) : zero;
                _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) a = _mm512_fmadd_ps(
                    dense[side][q], _mm512_load_ps(inputs + i * TILE + q * 16), a);
                _mm512_store_ps(out, a);
            }
        }
    }
    for (int64_t r = 0; r < rows_here; r++)
        for (int i = 0; i < m; i++)
            j->y[i * weights->outputs + row + r] =
                _mm512_reduce_add_ps(_mm512_load_ps(sums + (r * m + i) * 16)) +
                (j->bias ? j->bias[row + r] : 0.0f);
}

__attribute__((target(AVX512))) static void few(const job *j, const float *x, float *sums,
                                                int64_t chunk) {
    switch (j->tokens) {
    case 1: few_body(j, x, sums, chunk, 1); break;
    case 2: few_body(j, x, sums, chunk, 2); break;
    case 3: few_body(j, x, sums, chunk, 3); break;
    default: few_body(j, x, sums, chunk, FEW); break;
    }
}

static int run_few(const job *j, int threads) {
    const int64_t m = j->tokens, chunks = up(j->w.outputs, ROWS), tile = j->w.tile;
    const size_t size = (size_t)(up(j->w.inputs, tile) * m * TILE) * sizeof(float);
    float *x = allocate(size);
    if (!x) return -1;
    memset(x, 0, size);
    for (int64_t i = 0; i < m; i++)
        for (int64_t c = 0; c < j->w.inputs; c += tile)
            memcpy(x + (c / tile * m + i) * TILE, j->x + i * j->x_stride + c,
                   (size_t)least(tile, j->w.inputs - c) * sizeof(float));
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *sums = allocate((size_t)((ROWS + 1) * m * 16) * sizeof(float));
#pragma omp for schedule(dynamic)
        for (int64_t c = 0; c < chunks; c++) {
            if (sums) few(j, x, sums, c);
            else failed = 1;
        }
        free(sums);
    }
    free(x);
    return failed ? -1 : 0;
}

static int run_panels(const job *j, int threads, int lanes) {
    /* Two rows of accumulators and three more registers must fit: into 32 registers, or into 16. */
    const int64_t most = lanes == 16 ? 8 : 6, inputs = j->w.inputs;
    const int64_t vectors = up(j->tokens, lanes), panels = up(vectors, most);
    const int64_t chunks = up(j->w.outputs, ROWS);
    float *packed = allocate((size_t)(inputs * vectors * lanes) * sizeof(float));
    if (!packed) return -1;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *sums = allocate((size_t)((ROWS + 1) * most * lanes) * sizeof(float));
        /* Vectors are shared out evenly: 129 tokens are panels of 64 and 80, not of 128 and 16. */
#pragma omp for collapse(2) schedule(static)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t c = 0; c < inputs; c += 256) {
                const int64_t start = vectors * p / panels, n = vectors * (p + 1) / panels - start;
                const int64_t first = start * lanes;
                pack(j, first, least(j->tokens - first, n * lanes), n * lanes, c,
                     least(c + 256, inputs), packed + first * inputs);
            }
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t c = 0; c < chunks; c++) {
                const int64_t start = vectors * p / panels, n = vectors * (p + 1) / panels - start;
                const int64_t first = start * lanes, row = c * ROWS;
                const float *panel = packed + first * inputs;
                if (!sums) {
                    failed = 1;
                    continue;
                }
                if (lanes == 16) panel_avx512(&j->w, panel, sums, c, (int)n);
                else panel_avx2(&j->w, panel, sums, c, (int)n);
                unpack(j, first, least(j->tokens - first, n * lanes), n * lanes, row,
                       least(ROWS, j->w.outputs - row), sums);
            }
        free(sums);
    }
    free(packed);
    return failed ? -1 : 0;
}

static int best_isa(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("bmi2"))
        return 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("bmi2")
               ? 1
               : 0;
}

static PyObject *encode(PyObject *self, PyObject *args) {
    unsigned long long dense_, values_, masks_, rows_, starts_;
    long long inputs, outputs, tile;
    if (!PyArg_ParseTuple(args, "KKKKKLLL", &dense_, &values_, &masks_, &rows_, &starts_, &inputs,
                          &outputs, &tile))
        return NULL;
    const float *dense = (const float *)(uintptr_t)dense_;
    float *values = (float *)(uintptr_t)values_, *to = values;
    uint64_t *masks = (uint64_t *)(uintptr_t)masks_, kept[ROWS];
    uint16_t *numbers = (uint16_t *)(uintptr_t)rows_;
    int64_t *starts = (int64_t *)(uintptr_t)starts_;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t chunk = 0; chunk * ROWS < outputs; chunk++) {
        const int64_t rows = least(ROWS, outputs - chunk * ROWS);
        starts[chunk] = to - values;
        for (int64_t c = 0; c < inputs; c += tile) {
            const float *from = dense + chunk * ROWS * inputs + c;
            const int64_t width = least(tile, inputs - c);
            for (int64_t r = 0; r < rows; r++) {
                kept[r] = 0;
                for (int64_t i = 0; i < width; i++)
                    kept[r] |= (uint64_t)(from[r * inputs + i] != 0.0f) << i;
            }
            pair_rows(kept, rows, masks, numbers);
            for (int64_t p = 0; p < up(rows, 2); p++, masks += 3, numbers += 2) {
                const float *a = from + numbers[0] * inputs, *b = from + numbers[1] * inputs;
                to = gather(to, a, masks[0]);
                to = gather(to, b, masks[0]);
                to = gather(to, a, masks[1]);
                to = gather(to, b, masks[2]);
            }
        }
    }
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(to - values);
}

static PyObject *linear(PyObject *self, PyObject *args) {
    unsigned long long x, values, masks, rows, starts, bias, y;
    long long tokens, inputs, outputs, stride, tile;
    int threads, isa;
    if (!PyArg_ParseTuple(args, "KKKKKKKLLLLLii", &x, &values, &masks, &rows, &starts, &bias, &y,
                          &tokens, &inputs, &outputs, &stride, &tile, &threads, &isa))
        return NULL;
    if (isa < 1 || isa > best_isa() || tile < 1 || tile > TILE) {
        PyErr_SetString(PyExc_ValueError, "an instruction set or a tile that is not there");
        return NULL;
    }
    const job j = {{(const float *)(uintptr_t)values, (const uint64_t *)(uintptr_t)masks,
                    (const uint16_t *)(uintptr_t)rows, (const int64_t *)(uintptr_t)starts, inputs,
                    outputs, tile},
                   (const float *)(uintptr_t)x,
                   (const float *)(uintptr_t)bias,
                   (float *)(uintptr_t)y,
                   tokens,
                   stride};
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    if (isa == 2 && tokens <= FEW) failed = run_few(&j, threads);
    else failed = run_panels(&j, threads, isa == 2 ? 16 : 8);
    Py_END_ALLOW_THREADS;
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *isa(PyObject *self, PyObject *args) { return PyLong_FromLong(best_isa()); }

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, "Fill the streams of a weight; returns how many values it has."},
    {"linear", linear, METH_VARARGS, "Multiply; all pointers are integers, checked by the caller."},
    {"isa", isa, METH_NOARGS, "2: AVX-512, 1: AVX2 with FMA, 0: neither."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *made = PyModule_Create(&module);
    __builtin_cpu_init();
    if (made && (PyModule_AddIntConstant(made, "ROWS", ROWS) ||
                 PyModule_AddIntConstant(made, "AMD", __builtin_cpu_is("amd") != 0))) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
