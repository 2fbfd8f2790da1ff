/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that do not depend on the order of their terms (tensor/binned.h). All operations on floats are exact: products
 * with powers of two, differences of numbers that share their last digits, and rounding to integers, which is done by
 * adding a constant. So every instruction set and every compiler gives the same bits. */
#include "tensor/cpu/kernels.h"

#include <math.h>
#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "tensor/cpu/optim/binned_here.h"

#define GRAIN 64 /* blocks */
#define BLOCK TREK_BINNED_BLOCK
/* An element that is NaN has this in its highest digit. Digits of numbers sum to at most 2^50, and at most 1024 ranks
 * add this number. */
#define NOT_A_NUMBER ((int64_t)1 << 52)
#define LEAST_NAN ((int64_t)1 << 51)
/* The lowest bins. Below them powers of two could not be written, or there are no numbers. */
#define LOWEST_F32 (-4)
#define LOWEST_F64 (-26)

/* A double x with |x| < 2^51, plus this, is rounded to an integer, which is in the last bits of the sum. */
#define MAGIC 0x1.8p52
#define MAGIC_BITS INT64_C(0x4338000000000000)

static inline int64_t bits_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double of_bits(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double power(int exponent) { return of_bits((int64_t)(exponent + 1023) << 52); }

/* Returns the bin of numbers below 2^(exponent + 1). */
static int bin_of(int exponent, int lowest)
{
    int above = exponent + 1, bin = above >= 0 ? above / TREK_BINNED_WIDTH
                                               : -((TREK_BINNED_WIDTH - 1 - above) / TREK_BINNED_WIDTH);
    return bin > lowest ? bin : lowest;
}

static int64_t end_of(const trek_binned *x, int64_t block)
{
    return (block + 1) * BLOCK < x->count ? (block + 1) * BLOCK : x->count;
}

/* --- the bin rises --- */

static void move_digits(const trek_binned *x, int64_t block, int by)
{
    int digits = trek_binned_digits(x->dtype);
    for (int64_t i = block * BLOCK; i < end_of(x, block); i++) {
        bool nan = x->digits[0][i] >= LEAST_NAN;
        for (int k = digits - 1; k >= 0; k--)
            x->digits[k][i] = k >= by ? x->digits[k - by][i] : 0;
        if (nan)
            x->digits[0][i] = NOT_A_NUMBER;
    }
}

static void zero_digits(const trek_binned *x, int64_t block)
{
    for (int k = 0; k < trek_binned_digits(x->dtype); k++)
        memset(x->digits[k] + block * BLOCK, 0, (size_t)(end_of(x, block) - block * BLOCK) * sizeof(int64_t));
}

/* Makes the block's bin at least `bin`. Returns whether it was empty; its digits are then still undefined. */
static bool lift(const trek_binned *x, int64_t block, int bin)
{
    int now = x->bins[block];
    if (now == TREK_BINNED_EMPTY) {
        x->bins[block] = bin;
        return true;
    }
    if (bin > now) {
        move_digits(x, block, bin - now);
        x->bins[block] = bin;
    }
    return false;
}

static void raise_block(const trek_binned *x, int64_t block, int bin)
{
    if (lift(x, block, bin))
        zero_digits(x, block);
}

/* --- adding numbers --- */

/* Terms that are cut together: their digits are added up before they reach memory. */
#define TOGETHER 4

/* What cuts numbers at a bin's powers of two. CUT rounds a number by adding a constant to it, whose last bit is the digit's: then
 * the sum's bits are the digit, beside those of the constant. For f64 these constants would be too large. */
typedef struct cutter {
    double per[3], power[2];     /* of the digits */
    double magic[2];             /* 1.5 * 2^52 units of a digit */
} cutter;

static inline cutter cutter_of(int bin, bool third)
{
    int digit = TREK_BINNED_WIDTH * bin, low = digit - TREK_BINNED_WIDTH;
    return third ? (cutter){ .per = { power(-digit), power(-low), power(TREK_BINNED_WIDTH - low) },
                             .power = { power(digit), power(low) } }
                 : (cutter){ .magic = { power(digit) * MAGIC, power(low) * MAGIC } };
}

#define CUT_f32(x)                                                                                     \
    {                                                                                                  \
        double value = (double)x[i], high = value + by.magic[0], rest = value - (high - by.magic[0]);  \
        a += (uint64_t)bits_of(high);                                                                  \
        b += (uint64_t)bits_of(rest + by.magic[1]);                                                    \
    }
#define CUT_f64(x)                                                                                     \
    {                                                                                                  \
        double value = x[i], high = value * by.per[0] + MAGIC;                                         \
        double rest = value - (high - MAGIC) * by.power[0], low = rest * by.per[1] + MAGIC;            \
        a += (uint64_t)bits_of(high);                                                                  \
        b += (uint64_t)bits_of(low);                                                                   \
        c += (uint64_t)bits_of((rest - (low - MAGIC) * by.power[1]) * by.per[2] + MAGIC);              \
    }

/* Cuts the numbers of 1, 2 or TOGETHER terms into digits, which are written or added. `terms`, `fresh` and `third` are constants
 * where this is called. */
#define ADD_ROWS(T, suffix, third)                                                                     \
    static inline __attribute__((always_inline)) void add_rows_##suffix(                               \
        int64_t *restrict d0, int64_t *restrict d1, int64_t *restrict d2, const T *const *x,           \
        int terms, int64_t n, int bin, bool fresh)                                                     \
    {                                                                                                  \
        const cutter by = cutter_of(bin, third);                                                       \
        const uint64_t magic[2] = { (uint64_t)(third ? MAGIC_BITS : bits_of(by.magic[0])) * (uint64_t)terms, \
                                    (uint64_t)(third ? MAGIC_BITS : bits_of(by.magic[1])) * (uint64_t)terms }; \
        const T *x0 = x[0], *x1 = x[terms > 1 ? 1 : 0], *x2 = x[terms > 2 ? 2 : 0],                    \
                *x3 = x[terms > 2 ? 3 : 0];                                                            \
        for (int64_t i = 0; i < n; i++) {                                                              \
            uint64_t a = 0, b = 0, c = 0;                                                              \
            CUT_##suffix(x0)                                                                           \
            if (terms > 1)                                                                             \
                CUT_##suffix(x1)                                                                       \
            if (terms > 2) {                                                                           \
                CUT_##suffix(x2)                                                                       \
                CUT_##suffix(x3)                                                                       \
            }                                                                                          \
            d0[i] = (int64_t)(a - magic[0]) + (fresh ? 0 : d0[i]);                                     \
            d1[i] = (int64_t)(b - magic[1]) + (fresh ? 0 : d1[i]);                                     \
            if (third)                                                                                 \
                d2[i] = (int64_t)(c - magic[1]) + (fresh ? 0 : d2[i]);                                 \
        }                                                                                              \
    }
ADD_ROWS(float, f32, false)
ADD_ROWS(double, f64, true)

/* Numbers of f32 below 2^(36 bin + 22) have at most 58 bits above the lower digit's last one, which is what an integer holds. So
 * all of a number is rounded to one integer, and its upper digit is found with half as many bytes. The sum of the lower digits is
 * the rest. Returns false, and does nothing, where this is not possible. */
#if defined(__AVX512DQ__)
static inline bool add_short_f32(int64_t *d0, int64_t *d1, const float *const *x, int terms, int64_t n, int bin, int exponent,
                                 bool fresh)
{
    if (bin < -2 || bin > 1 || exponent >= TREK_BINNED_WIDTH * bin + 22 || n % 16 != 0)
        return false;
    const __m512 magic = _mm512_set1_ps((float)(1.5 * power(TREK_BINNED_WIDTH * bin + 23)));
    const __m512 per = _mm512_set1_ps((float)power(-TREK_BINNED_WIDTH * (bin - 1)));
    const __m512i magics = _mm512_mullo_epi32(_mm512_castps_si512(magic), _mm512_set1_epi32(terms));
    for (int64_t i = 0; i < n; i += 16) {
        __m512i highs = _mm512_setzero_si512(), sum[2] = { highs, highs };
        for (int k = 0; k < terms; k++) {
            __m512 value = _mm512_loadu_ps(x[k] + i), scaled = _mm512_mul_ps(value, per);
            highs = _mm512_add_epi32(highs, _mm512_castps_si512(_mm512_add_ps(value, magic)));
            sum[0] = _mm512_add_epi64(sum[0], _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)));
            sum[1] = _mm512_add_epi64(sum[1], _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
        }
        highs = _mm512_sub_epi32(highs, magics);
        for (int half = 0; half < 2; half++) {
            __m256i part = half ? _mm512_extracti32x8_epi32(highs, 1) : _mm512_castsi512_si256(highs);
            __m512i high = _mm512_cvtepi32_epi64(part), low = _mm512_sub_epi64(sum[half],
                                                                              _mm512_slli_epi64(high, TREK_BINNED_WIDTH));
            int64_t *to0 = d0 + i + 8 * half, *to1 = d1 + i + 8 * half;
            _mm512_storeu_si512(to0, fresh ? high : _mm512_add_epi64(high, _mm512_loadu_si512(to0)));
            _mm512_storeu_si512(to1, fresh ? low : _mm512_add_epi64(low, _mm512_loadu_si512(to1)));
        }
    }
    return true;
}
#else
static inline bool add_short_f32(int64_t *d0, int64_t *d1, const float *const *x, int terms, int64_t n, int bin, int exponent,
                                 bool fresh)
{
    (void)d0, (void)d1, (void)x, (void)terms, (void)n, (void)bin, (void)exponent, (void)fresh;
    return false;
}
#endif

static inline bool add_short_f64(int64_t *d0, int64_t *d1, const double *const *x, int terms, int64_t n, int bin, int exponent,
                                 bool fresh)
{
    (void)d0, (void)d1, (void)x, (void)terms, (void)n, (void)bin, (void)exponent, (void)fresh;
    return false;
}

/* Adds numbers of at least one term, all below 2^(exponent + 1), of which none is above the bin. */
#define ADD_NUMBERS(T, suffix, third)                                                                  \
    static void add_numbers_##suffix(const trek_binned *to, int64_t block, const T *const *x,          \
                                     int terms, int64_t n, int bin, int exponent)                      \
    {                                                                                                  \
        int64_t at = block * BLOCK, *d0 = to->digits[0] + at, *d1 = to->digits[1] + at;                \
        int64_t *d2 = third ? to->digits[2] + at : NULL;                                               \
        bool fresh = lift(to, block, bin);                                                             \
        bin = to->bins[block];                                                                         \
        if (add_short_##suffix(d0, d1, x, terms, n, bin, exponent, fresh))                             \
            return;                                                                                    \
        if (fresh) {                                                                                   \
            add_rows_##suffix(d0, d1, d2, x++, 1, n, bin, true);                                       \
            terms--;                                                                                   \
        }                                                                                              \
        for (; terms >= TOGETHER; terms -= TOGETHER, x += TOGETHER)                                    \
            add_rows_##suffix(d0, d1, d2, x, TOGETHER, n, bin, false);                                 \
        for (; terms >= 2; terms -= 2, x += 2)                                                         \
            add_rows_##suffix(d0, d1, d2, x, 2, n, bin, false);                                        \
        if (terms > 0)                                                                                 \
            add_rows_##suffix(d0, d1, d2, x, 1, n, bin, false);                                        \
    }
ADD_NUMBERS(float, f32, false)
ADD_NUMBERS(double, f64, true)

/* Adds one block of several terms. Terms with inf or NaN are added as if these were 0, and then they are marked. */
#define ADD_BLOCK(T, U, suffix, mantissa, bias, infinite, lowest)                                      \
    static U most_##suffix(const T *x, int64_t n)                                                      \
    {                                                                                                  \
        U most = 0;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                              \
            U bits;                                                                                    \
            memcpy(&bits, &x[i], sizeof bits);                                                         \
            bits &= (U)~(U)0 >> 1;                                                                     \
            most = bits > most ? bits : most;                                                          \
        }                                                                                              \
        return most;                                                                                   \
    }                                                                                                  \
    static int exponent_##suffix(U most) { return (int)(most >> mantissa) - bias; }                    \
    static void add_odd_##suffix(const trek_binned *to, int64_t block, const T *x, int64_t n)          \
    {                                                                                                  \
        T finite[BLOCK];                                                                               \
        const T *terms[1] = { finite };                                                                \
        for (int64_t i = 0; i < n; i++)                                                                \
            finite[i] = isfinite(x[i]) ? x[i] : 0;                                                     \
        U most = most_##suffix(finite, n);                                                             \
        int exponent = exponent_##suffix(most);                                                        \
        add_numbers_##suffix(to, block, terms, 1, n, bin_of(exponent, lowest), exponent);              \
        for (int64_t i = 0; i < n; i++)                                                                \
            if (!isfinite(x[i]) && to->digits[0][block * BLOCK + i] < LEAST_NAN)                       \
                to->digits[0][block * BLOCK + i] += NOT_A_NUMBER;                                      \
    }                                                                                                  \
    static void add_block_##suffix(const trek_binned *to, int64_t block, void *const *terms, int n)    \
    {                                                                                                  \
        const T *x[TREK_BINNED_TERMS];                                                                 \
        int64_t count = end_of(to, block) - block * BLOCK;                                             \
        U most = 0;                                                                                    \
        int numbers = 0;                                                                               \
        for (int k = 0; k < n; k++) {                                                                  \
            const T *term = (const T *)terms[k] + block * BLOCK;                                       \
            U own = most_##suffix(term, count);                                                        \
            if (own >= infinite)                                                                       \
                add_odd_##suffix(to, block, term, count);                                              \
            else if (own > 0)                                                                          \
                x[numbers++] = term;                                                                   \
            most = own < infinite && own > most ? own : most;                                          \
        }                                                                                              \
        if (numbers > 0)                                                                               \
            add_numbers_##suffix(to, block, x, numbers, count, bin_of(exponent_##suffix(most), lowest), \
                                 exponent_##suffix(most));                                             \
    }
ADD_BLOCK(float, uint32_t, f32, 23, 127, 0x7f800000u, LOWEST_F32)
ADD_BLOCK(double, uint64_t, f64, 52, 1023, UINT64_C(0x7ff0000000000000), LOWEST_F64)

typedef struct binned_work {
    const trek_binned *sum;
    char *data;                  /* of element 0 */
    void *const *terms;          /* [n] the same of each term */
    const trek_binned *const *from;
    int n;
    const int32_t *bins;
    double factor;
    bool zero;
    int64_t first;               /* the block that part 0 of the work is */
} binned_work;

static void add_part(void *arg, int64_t begin, int64_t end)
{
    const binned_work *w = arg;
    const trek_binned *to = w->sum;
    size_t size = trek_dtype_size(to->dtype);
    for (int64_t block = w->first + begin; block < w->first + end; block++) {
        if (to->dtype == TREK_F64)
            add_block_f64(to, block, w->terms, w->n);
        else
            add_block_f32(to, block, w->terms, w->n);
        for (int k = 0; k < w->n && w->zero; k++)
            memset((char *)w->terms[k] + (size_t)(block * BLOCK) * size, 0, (size_t)(end_of(to, block) - block * BLOCK) * size);
    }
}

void TREK_ISA_NAME(trek_binned_add_here)(const trek_binned *to, void *const *terms, int n)
{
    add_part(&(binned_work){ .sum = to, .terms = terms, .n = n }, 0, trek_binned_blocks(to->count));
}

enum { LOOK = 64, LARGEST_EXPONENT = 126 };

/* A block that has no lower bin than the bound keeps it. Otherwise its bin becomes that of the bound if a single number is as
 * large, which is found among the first ones, unless all of them are much smaller than the bound. */
void TREK_ISA_NAME(trek_binned_add_below)(const trek_binned *to, void *const *terms, int n, int exponent)
{
    const float *x[TREK_BINNED_TERMS];
    int bin = bin_of(exponent, LOWEST_F32);
    for (int k = 0; k < n; k++)
        x[k] = terms[k];
    bool known = exponent <= LARGEST_EXPONENT;
    if (known && (to->bins[0] == TREK_BINNED_EMPTY || to->bins[0] < bin)) {
        uint32_t most = most_f32(x[0], to->count < LOOK ? to->count : LOOK);
        known = most > 0 && bin_of(exponent_f32(most), LOWEST_F32) == bin;
    }
    if (known)
        add_numbers_f32(to, 0, x, n, to->count, bin, exponent);
    else
        add_block_f32(to, 0, terms, n);
}

static void add(const trek_binned *to, void *const *terms, int n, int64_t first, int64_t blocks, bool zero)
{
    binned_work w = { .sum = to, .terms = terms, .n = n, .first = first, .zero = zero };
    trek_parallel(blocks, GRAIN, add_part, &w);
}

/* --- adding sums --- */

/* Adds a block of another sum, whose bin is not above that of the result. */
static void merge_block(const trek_binned *to, const trek_binned *from, int64_t block)
{
    int by = to->bins[block] - from->bins[block], digits = trek_binned_digits(to->dtype);
    int64_t begin = block * BLOCK, end = end_of(to, block);
    if (by == 0) {
        for (int k = 0; k < digits; k++)
            for (int64_t i = begin; i < end; i++)
                to->digits[k][i] += from->digits[k][i];
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        bool nan = from->digits[0][i] >= LEAST_NAN;
        for (int k = by; k < digits; k++)
            to->digits[k][i] += from->digits[k - by][i];
        if (nan)
            to->digits[0][i] += NOT_A_NUMBER;
    }
}

static void merge_part(void *arg, int64_t begin, int64_t end)
{
    const binned_work *w = arg;
    for (int64_t block = w->first + begin; block < w->first + end; block++) {
        int32_t bin = TREK_BINNED_EMPTY;
        for (int k = 0; k < w->n; k++)
            bin = w->from[k]->bins[block] > bin ? w->from[k]->bins[block] : bin;
        if (bin != TREK_BINNED_EMPTY)
            raise_block(w->sum, block, bin);
        for (int k = 0; k < w->n; k++)
            if (w->from[k]->bins[block] != TREK_BINNED_EMPTY)
                merge_block(w->sum, w->from[k], block);
    }
}

static void merge(const trek_binned *to, const trek_binned *const *from, int n, int64_t first, int64_t blocks)
{
    binned_work w = { .sum = to, .from = from, .n = n, .first = first };
    trek_parallel(blocks, GRAIN, merge_part, &w);
}

static void raise_part(void *arg, int64_t begin, int64_t end)
{
    const binned_work *w = arg;
    for (int64_t block = begin; block < end; block++)
        raise_block(w->sum, block, w->bins[block]);
}

static void raise_bins(const trek_binned *sum, const int32_t *bins)
{
    binned_work w = { .sum = sum, .bins = bins };
    trek_parallel(trek_binned_blocks(sum->count), GRAIN, raise_part, &w);
}

/* --- one integer for each element --- */

typedef struct short_work {
    const trek_binned *sum;
    const trek_binned_bounds *bounds;
    int64_t first, *integers;
    int32_t *tops, *lows;
} short_work;

/* Returns how many bits x has besides its sign, given x or its complement. */
static int bits_in(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

/* A sum is high * 2^36 + the last 36 bits of the lower digit. When the bin rises, the higher digit alone may remain. A block with
 * NaN fits nowhere. */
static void bound_block(const trek_binned *x, int64_t block, int32_t *top, int32_t *low)
{
    const int64_t *restrict d0 = x->digits[0] + block * BLOCK, *restrict d1 = x->digits[1] + block * BLOCK;
    int64_t n = end_of(x, block) - block * BLOCK, last = TREK_BINNED_WIDTH * (x->bins[block] - 1);
    uint64_t size = 0, highs = 0, lasts = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t high = d0[i] + (d1[i] >> TREK_BINNED_WIDTH);
        size |= (uint64_t)(high ^ (high >> 63)) | (uint64_t)(d0[i] ^ (d0[i] >> 63));
        highs |= (uint64_t)high;
        lasts |= (uint64_t)d1[i];
    }
    lasts &= ((uint64_t)1 << TREK_BINNED_WIDTH) - 1;
    *top = size >= (uint64_t)LEAST_NAN ? INT32_MAX / 2 : (int32_t)(last + TREK_BINNED_WIDTH + bits_in(size));
    *low = -(int32_t)(last + (lasts ? __builtin_ctzll(lasts) : highs ? TREK_BINNED_WIDTH + __builtin_ctzll(highs)
                                                                     : TREK_BINNED_WIDTH));
}

static void bounds_part(void *arg, int64_t begin, int64_t end)
{
    const short_work *w = arg;
    for (int64_t block = begin; block < end; block++)
        if (w->sum->bins[block] == TREK_BINNED_EMPTY)
            w->tops[block] = w->lows[block] = INT32_MIN;
        else
            bound_block(w->sum, block, &w->tops[block], &w->lows[block]);
}

static void bounds_of(const trek_binned *sum, int32_t *tops, int32_t *lows)
{
    short_work w = { .sum = sum, .tops = tops, .lows = lows };
    trek_parallel(trek_binned_blocks(sum->count), GRAIN, bounds_part, &w);
}

static void shorten_block(const short_work *w, int64_t block, int64_t *restrict to)
{
    const int64_t *restrict d0 = w->sum->digits[0] + block * BLOCK, *restrict d1 = w->sum->digits[1] + block * BLOCK;
    int64_t n = end_of(w->sum, block) - block * BLOCK;
    if (w->bounds->bins[block] == TREK_BINNED_EMPTY) {
        memset(to, 0, (size_t)n * sizeof *to);
        return;
    }
    if (!trek_binned_fits(w->bounds, block)) {
        memcpy(to, d0, (size_t)n * sizeof *to);
        return;
    }
    int by = trek_binned_low(w->bounds, block) - TREK_BINNED_WIDTH * (w->bounds->bins[block] - 1);
    if (by <= TREK_BINNED_WIDTH)
        for (int64_t i = 0; i < n; i++)
            to[i] = d0[i] * ((int64_t)1 << (TREK_BINNED_WIDTH - by)) + (d1[i] >> by);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (d0[i] + (d1[i] >> TREK_BINNED_WIDTH)) >> (by - TREK_BINNED_WIDTH);
}

static void expand_block(const short_work *w, int64_t block, const int64_t *restrict from)
{
    int64_t *restrict d0 = w->sum->digits[0] + block * BLOCK, *restrict d1 = w->sum->digits[1] + block * BLOCK;
    int64_t n = end_of(w->sum, block) - block * BLOCK;
    if (w->bounds->bins[block] == TREK_BINNED_EMPTY)
        return;
    if (!trek_binned_fits(w->bounds, block)) {
        memcpy(d0, from, (size_t)n * sizeof *from);
        return;
    }
    int by = trek_binned_low(w->bounds, block) - TREK_BINNED_WIDTH * (w->bounds->bins[block] - 1);
    int left = by < TREK_BINNED_WIDTH ? TREK_BINNED_WIDTH - by : 0;
    int64_t unit = (int64_t)1 << (by < TREK_BINNED_WIDTH ? by : 0);
    int64_t more = (int64_t)1 << (by > TREK_BINNED_WIDTH ? by - TREK_BINNED_WIDTH : 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t high = from[i] >> left;
        d1[i] = (from[i] - high * ((int64_t)1 << left)) * unit;
        d0[i] = high * more;
    }
}

static void shorten_part(void *arg, int64_t begin, int64_t end)
{
    const short_work *w = arg;
    for (int64_t block = begin; block < end; block++)
        shorten_block(w, w->first + block, w->integers + block * BLOCK);
}

static void expand_part(void *arg, int64_t begin, int64_t end)
{
    const short_work *w = arg;
    for (int64_t block = begin; block < end; block++)
        expand_block(w, w->first + block, w->integers + block * BLOCK);
}

static void shorten(const trek_binned *sum, const trek_binned_bounds *bounds, int64_t first, int64_t blocks, int64_t *integers)
{
    short_work w = { .sum = sum, .bounds = bounds, .first = first, .integers = integers };
    trek_parallel(blocks, GRAIN, shorten_part, &w);
}

static void expand(const trek_binned *sum, const trek_binned_bounds *bounds, int64_t first, int64_t blocks,
                   const int64_t *integers)
{
    short_work w = { .sum = sum, .bounds = bounds, .first = first, .integers = (int64_t *)integers };
    trek_parallel(blocks, GRAIN, expand_part, &w);
}

/* --- the result --- */

/* Takes what is beyond one digit out of it. Without this, the sum of three digits would be rounded before large ones cancel. */
static inline int64_t carry(int64_t *digit)
{
    int64_t carried = (*digit + ((int64_t)1 << (TREK_BINNED_WIDTH - 1))) >> TREK_BINNED_WIDTH;
    *digit -= carried * ((int64_t)1 << TREK_BINNED_WIDTH);
    return carried;
}

#define READ_ROW(T, suffix)                                                                            \
    static inline __attribute__((always_inline)) void read_row_##suffix(                               \
        const int64_t *restrict d0, const int64_t *restrict d1, const int64_t *restrict d2,            \
        T *restrict to, int64_t n, int bin, double factor)                                             \
    {                                                                                                  \
        const double one = power(TREK_BINNED_WIDTH * bin), two = power(TREK_BINNED_WIDTH * (bin - 1)); \
        const double three = d2 ? power(TREK_BINNED_WIDTH * (bin - 2)) : 0;                            \
        for (int64_t i = 0; i < n; i++) {                                                              \
            int64_t a = d0[i], b = d1[i], c = d2 ? d2[i] : 0;                                          \
            if (d2) {                                                                                  \
                b += carry(&c);                                                                        \
                a += carry(&b);                                                                        \
            }                                                                                          \
            double sum = (of_bits(b + MAGIC_BITS) - MAGIC) * two;                                      \
            if (d2)                                                                                    \
                sum += (of_bits(c + MAGIC_BITS) - MAGIC) * three;                                      \
            sum = (sum + (of_bits(a + MAGIC_BITS) - MAGIC) * one) * factor;                            \
            to[i] = d0[i] >= LEAST_NAN ? (T)NAN : (T)sum;                                              \
        }                                                                                              \
    }
READ_ROW(float, f32)
READ_ROW(double, f64)

static void read_part(void *arg, int64_t begin, int64_t end)
{
    const binned_work *w = arg;
    const trek_binned *x = w->sum;
    size_t size = trek_dtype_size(x->dtype);
    for (int64_t block = w->first + begin; block < w->first + end; block++) {
        int64_t at = block * BLOCK, n = end_of(x, block) - at;
        char *to = w->data + (size_t)at * size;
        if (x->bins[block] == TREK_BINNED_EMPTY)
            memset(to, 0, (size_t)n * size);
        else if (x->dtype == TREK_F64)
            read_row_f64(x->digits[0] + at, x->digits[1] + at, x->digits[2] + at, (double *)(void *)to, n, x->bins[block],
                         w->factor);
        else
            read_row_f32(x->digits[0] + at, x->digits[1] + at, NULL, (float *)(void *)to, n, x->bins[block], w->factor);
    }
}

void TREK_ISA_NAME(trek_binned_read_here)(const trek_binned *sum, double factor, void *data)
{
    read_part(&(binned_work){ .sum = sum, .data = data, .factor = factor }, 0, trek_binned_blocks(sum->count));
}

static void read_sums(const trek_binned *sum, double factor, void *data, int64_t first, int64_t blocks)
{
    binned_work w = { .sum = sum, .data = data, .factor = factor, .first = first };
    trek_parallel(blocks, GRAIN, read_part, &w);
}

void TREK_ISA_NAME(trek_cpu_register_binned)(trek_backend *b)
{
    b->binned_add = add;
    b->binned_merge = merge;
    b->binned_raise = raise_bins;
    b->binned_read = read_sums;
    b->binned_bounds = bounds_of;
    b->binned_shorten = shorten;
    b->binned_expand = expand;
}
