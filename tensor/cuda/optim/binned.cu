/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that do not depend on the order of their terms (tensor/binned.h), in device memory, and digests of what is there. Every
 * operation on floats is exact, and digits are integers, so sums have the digits of the CPU's (tensor/cpu/optim/binned.c).
 *
 * A warp has one block of elements, each lane four pairs of neighbours. */
#include "tensor/cuda/block.cuh"
#include "tensor/cuda/optim/update_apply.cuh"
#include "tensor/digest_lanes.h"

#define BLOCK TREK_BINNED_BLOCK
#define WARPS 8                           /* of a block of threads */
#define PAIRS (BLOCK / 64)                /* of a lane */
#define DIGEST_BLOCKS 2048                /* the most blocks of threads */
#define NOT_A_NUMBER ((int64_t)1 << 52)   /* as on the CPU, and what follows */
#define LEAST_NAN ((int64_t)1 << 51)
#define MAGIC 6755399441055744.0          /* 1.5 * 2^52 */
#define MAGIC_BITS INT64_C(0x4338000000000000)

template <typename T> struct binned_format;
template <> struct binned_format<float> {
    typedef uint32_t bits;
    static const uint32_t magnitude = 0x7fffffffu, infinite = 0x7f800000u;
    static const int mantissa = 23, bias = 127, lowest = -4, digits = 2;
};
template <> struct binned_format<double> {
    typedef uint64_t bits;
    static const uint64_t magnitude = UINT64_C(0x7fffffffffffffff), infinite = UINT64_C(0x7ff0000000000000);
    static const int mantissa = 52, bias = 1023, lowest = -26, digits = 3;
};

/* The sums that a kernel works on. */
struct binned_place {
    int64_t *digits[TREK_BINNED_DIGITS];
    int32_t *bins;
    int64_t count;
};

static binned_place place_of(const trek_binned *x)
{
    return { { x->digits[0], x->digits[1], x->digits[2] }, x->bins, x->count };
}

__device__ __forceinline__ int64_t bits_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

__device__ __forceinline__ double of_bits(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

__device__ __forceinline__ double power(int exponent) { return of_bits((int64_t)(exponent + 1023) << 52); }

/* Returns the bin of numbers below 2^(exponent + 1). */
__device__ __forceinline__ int bin_of(int exponent, int lowest)
{
    int above = exponent + 1, width = TREK_BINNED_WIDTH, bin = above >= 0 ? above / width : -((width - 1 - above) / width);
    return bin > lowest ? bin : lowest;
}

/* --- pairs of neighbours --- */

/* Returns the first element of the lane's pair k. */
__device__ __forceinline__ int64_t pair_at(int64_t block, int k) { return block * BLOCK + 64 * k + 2 * ((int)threadIdx.x & 31); }

/* Elements beyond the end are 0. */
template <typename T> __device__ __forceinline__ void load_pair(const T *from, int64_t at, int64_t count, T *to)
{
    if (at + 1 < count) {
        trek_vector<T, 2> v = *(const trek_vector<T, 2> *)(from + at);
        to[0] = v.x[0];
        to[1] = v.x[1];
        return;
    }
    to[0] = at < count ? from[at] : (T)0;
    to[1] = 0;
}

template <typename T> __device__ __forceinline__ void store_pair(T *to, int64_t at, int64_t count, const T *from)
{
    if (at + 1 < count)
        *(trek_vector<T, 2> *)(to + at) = trek_vector<T, 2>{ { from[0], from[1] } };
    else if (at < count)
        to[at] = from[0];
}

/* --- adding numbers --- */

template <typename T> __device__ __forceinline__ typename binned_format<T>::bits magnitude_of(T x)
{
    typename binned_format<T>::bits bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & binned_format<T>::magnitude;
}

/* Returns the largest magnitude among the warp's elements. */
template <typename T> __device__ __forceinline__ typename binned_format<T>::bits most_of(const T (*x)[2])
{
    typename binned_format<T>::bits most = 0;
#pragma unroll
    for (int k = 0; k < PAIRS; k++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            most = magnitude_of(x[k][e]) > most ? magnitude_of(x[k][e]) : most;
    return trek_team_reduce(most, 32, (typename binned_format<T>::bits *)nullptr, (typename binned_format<T>::bits)0,
                            trek_maxes());
}

/* What becomes of a sum's digits when its bin rises. */
template <int digits> __device__ __forceinline__ void move_digits(int64_t *d, int by)
{
    bool nan = d[0] >= LEAST_NAN;
    for (; by > 0 && by <= digits; by--) {
#pragma unroll
        for (int k = digits - 1; k > 0; k--)
            d[k] = d[k - 1];
        d[0] = 0;
    }
    if (by > 0) {
#pragma unroll
        for (int k = 0; k < digits; k++)
            d[k] = 0;
    }
    if (nan)
        d[0] = NOT_A_NUMBER;
}

/* Cuts a number into digits and adds these. */
template <int digits> __device__ __forceinline__ void add_number(int64_t *d, double x, int bin)
{
#pragma unroll
    for (int k = 0; k < digits; k++) {
        double digit = x * power(-TREK_BINNED_WIDTH * (bin - k)) + MAGIC;
        d[k] += bits_of(digit) - MAGIC_BITS;
        x -= (digit - MAGIC) * power(TREK_BINNED_WIDTH * (bin - k));
    }
}

/* Adds the numbers of a block, whose bin is `bin`, to its sums. They had the bin `now`. */
template <typename T>
__device__ __forceinline__ void add_block(const binned_place &to, int64_t block, const T (*x)[2], const unsigned *odd, int now,
                                          int bin)
{
    const int digits = binned_format<T>::digits;
    bool fresh = now == TREK_BINNED_EMPTY;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        int64_t at = pair_at(block, k), row[TREK_BINNED_DIGITS][2] = {};
#pragma unroll
        for (int d = 0; d < digits && !fresh; d++)
            load_pair(to.digits[d], at, to.count, row[d]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int64_t sums[TREK_BINNED_DIGITS] = { row[0][e], row[1][e], row[2][e] };
            if (!fresh && bin > now)
                move_digits<digits>(sums, bin - now);
            add_number<digits>(sums, (double)x[k][e], bin);
            if ((odd[k] >> e & 1) && sums[0] < LEAST_NAN)
                sums[0] += NOT_A_NUMBER;
#pragma unroll
            for (int d = 0; d < digits; d++)
                row[d][e] = sums[d];
        }
#pragma unroll
        for (int d = 0; d < digits; d++)
            store_pair(to.digits[d], at, to.count, row[d]);
    }
}

/* Replaces inf and NaN by 0, and notes where they were. */
template <typename T> __device__ __forceinline__ void take_odd(T (*x)[2], unsigned *odd)
{
#pragma unroll
    for (int k = 0; k < PAIRS; k++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (magnitude_of(x[k][e]) >= binned_format<T>::infinite) {
                odd[k] |= 1u << e;
                x[k][e] = 0;
            }
}

template <typename T> static __global__ void add_kernel(binned_place to, T *data, int64_t first, int64_t end, bool zero)
{
    typedef binned_format<T> format;
    for (int64_t block = first + (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); block < end;
         block += (int64_t)gridDim.x * WARPS) {
        T x[PAIRS][2];
        unsigned odd[PAIRS] = {};
#pragma unroll
        for (int k = 0; k < PAIRS; k++)
            load_pair(data, pair_at(block, k), to.count, x[k]);
        typename format::bits most = most_of<T>(x);
        bool has = most != 0;
        if (most >= format::infinite) {
            take_odd(x, odd);
            most = most_of<T>(x);
        }
        if (has) {
            int bin = most ? bin_of((int)(most >> format::mantissa) - format::bias, format::lowest) : format::lowest;
            int now = (threadIdx.x & 31) == 0 ? to.bins[block] : 0;
            now = __shfl_sync(0xffffffffu, now, 0);
            bin = now > bin ? now : bin; /* an empty block's is below all */
            add_block<T>(to, block, x, odd, now, bin);
            if ((threadIdx.x & 31) == 0)
                to.bins[block] = bin;
        }
        const T nothing[2] = { 0, 0 };
#pragma unroll
        for (int k = 0; k < PAIRS && zero; k++)
            store_pair(data, pair_at(block, k), to.count, nothing);
    }
}

/* --- the bins rise --- */

template <int digits> static __global__ void raise_kernel(binned_place to, const int32_t *bins, int64_t end)
{
    for (int64_t block = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); block < end; block += (int64_t)gridDim.x * WARPS) {
        int now = (threadIdx.x & 31) == 0 ? to.bins[block] : 0, bin = bins[block];
        now = __shfl_sync(0xffffffffu, now, 0);
        if (now != TREK_BINNED_EMPTY && bin <= now)
            continue;
        for (int k = 0; k < PAIRS; k++) {
            int64_t at = pair_at(block, k), row[TREK_BINNED_DIGITS][2] = {};
            for (int d = 0; d < digits && now != TREK_BINNED_EMPTY; d++)
                load_pair(to.digits[d], at, to.count, row[d]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int64_t sums[TREK_BINNED_DIGITS] = { row[0][e], row[1][e], row[2][e] };
                if (now != TREK_BINNED_EMPTY)
                    move_digits<digits>(sums, bin - now);
#pragma unroll
                for (int d = 0; d < digits; d++)
                    row[d][e] = sums[d];
            }
            for (int d = 0; d < digits; d++)
                store_pair(to.digits[d], at, to.count, row[d]);
        }
        if ((threadIdx.x & 31) == 0)
            to.bins[block] = bin;
    }
}

/* --- the result --- */

/* Takes what is beyond one digit out of it. */
__device__ __forceinline__ int64_t carry(int64_t *digit)
{
    int64_t carried = (*digit + ((int64_t)1 << (TREK_BINNED_WIDTH - 1))) >> TREK_BINNED_WIDTH;
    *digit -= carried * ((int64_t)1 << TREK_BINNED_WIDTH);
    return carried;
}

template <typename T> static __global__ void read_kernel(binned_place from, double factor, T *to, int64_t begin, int64_t end)
{
    const bool three = binned_format<T>::digits == 3;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = begin + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += stride) {
        int bin = from.bins[i / BLOCK];
        if (bin == TREK_BINNED_EMPTY) {
            to[i] = 0;
            continue;
        }
        int64_t a = from.digits[0][i], b = from.digits[1][i], c = three ? from.digits[2][i] : 0;
        bool nan = a >= LEAST_NAN;
        if (three) {
            b += carry(&c);
            a += carry(&b);
        }
        double sum = (of_bits(b + MAGIC_BITS) - MAGIC) * power(TREK_BINNED_WIDTH * (bin - 1));
        if (three)
            sum += (of_bits(c + MAGIC_BITS) - MAGIC) * power(TREK_BINNED_WIDTH * (bin - 2));
        sum = (sum + (of_bits(a + MAGIC_BITS) - MAGIC) * power(TREK_BINNED_WIDTH * bin)) * factor;
        to[i] = nan ? (T)NAN : (T)sum;
    }
}

/* --- launches: on the device of the calling thread's rank --- */

static trek_cuda_queue *queue_of_place(int64_t work)
{
    trek_device here = trek_plugin_host->rank_context()->device;
    return work > 0 ? trek_cuda_queue_here(here.type == TREK_CUDA ? here.index : 0) : nullptr;
}

static trek_grid warps_for(int64_t blocks)
{
    int64_t grid = (blocks + WARPS - 1) / WARPS;
    return trek_blocks(dim3((unsigned)(grid < 0x7fffffff ? grid : 0x7fffffff)), dim3(32 * WARPS));
}

static void add(const trek_binned *to, void *const *terms, int n, int64_t first, int64_t blocks, bool zero)
{
    trek_cuda_queue *queue = queue_of_place(blocks);
    for (int k = 0; k < n && queue; k++)
        if (to->dtype == TREK_F64)
            trek_launch_plain("binned_add", queue, warps_for(blocks), add_kernel<double>, place_of(to), (double *)terms[k], first,
                              first + blocks, zero);
        else
            trek_launch_plain("binned_add", queue, warps_for(blocks), add_kernel<float>, place_of(to), (float *)terms[k], first,
                              first + blocks, zero);
}

static void raise_bins(const trek_binned *sum, const int32_t *bins)
{
    int64_t blocks = trek_binned_blocks(sum->count);
    trek_cuda_queue *queue = queue_of_place(blocks);
    if (queue)
        trek_launch_plain("binned_raise", queue, warps_for(blocks), sum->dtype == TREK_F64 ? raise_kernel<3> : raise_kernel<2>,
                          place_of(sum), bins, blocks);
}

static void read_sums(const trek_binned *sum, double factor, void *data, int64_t first, int64_t blocks)
{
    trek_cuda_queue *queue = queue_of_place(blocks);
    int64_t begin = first * BLOCK, end = begin + blocks * BLOCK < sum->count ? begin + blocks * BLOCK : sum->count;
    if (queue && sum->dtype == TREK_F64)
        trek_launch_plain("binned_read", queue, trek_loop(end - begin), read_kernel<double>, place_of(sum), factor,
                          (double *)data,
                          begin, end);
    else if (queue)
        trek_launch_plain("binned_read", queue, trek_loop(end - begin), read_kernel<float>, place_of(sum), factor, (float *)data,
                          begin, end);
}

/* --- digests --- */

struct digest_spans {
    trek_digest_span span[TREK_DIGEST_SPANS];
    int64_t first_block[TREK_DIGEST_SPANS + 1]; /* in the order of the spans */
    int n;
};

/* Returns a word of memory, of which only `left` bytes may be read; the others are 0. With `floats`, -0 becomes 0. */
__device__ __forceinline__ uint64_t word_at(const unsigned char *from, int64_t left, int floats)
{
    uint64_t word = 0;
    if (left >= 8)
        word = *(const uint64_t *)from;
    else
        for (int k = 0; k < left; k++)
            word |= (uint64_t)from[k] << 8 * k;
    if (floats == 8 && word == UINT64_C(0x8000000000000000))
        return 0;
    if (floats == 4 && (uint32_t)word == 0x80000000u)
        word &= UINT64_C(0xffffffff00000000);
    if (floats == 4 && word >> 32 == 0x80000000u)
        word &= 0xffffffffu;
    return word;
}

/* A lane of a warp has words of one lane of the digest, of every fourth stripe. All lanes of the digest are in all threads
 * afterwards. */
__device__ __forceinline__ void digest_lanes(const unsigned char *from, int64_t size, int floats, uint64_t *lanes)
{
    const uint64_t keys[TREK_DIGEST_LANES] = TREK_DIGEST_KEYS;
    int j = (int)threadIdx.x & 7;
    uint64_t sum = 0, key = 0;
#pragma unroll
    for (int k = 0; k < TREK_DIGEST_LANES; k++)
        key = j == k ? keys[k] : key;
    for (int s = ((int)threadIdx.x & 31) >> 3; 64 * s < size; s += 4) {
        int64_t at = 64 * s + 8 * j;
        uint64_t word = word_at(from + at, size - at, floats), other = word_at(from + (at ^ 8), size - (at ^ 8), floats);
        sum += trek_digest_word(word, key + (uint64_t)s * TREK_DIGEST_M) + other;
    }
    sum += trek_shuffle_xor(sum, 8);
    sum += trek_shuffle_xor(sum, 16);
#pragma unroll
    for (int k = 0; k < TREK_DIGEST_LANES; k++)
        lanes[k] = __shfl_sync(0xffffffffu, sum, k);
}

static __global__ void digest_kernel(digest_spans s, unsigned long long *result)
{
    int half = (int)threadIdx.x & 31;
    uint64_t total = 0;
    for (int64_t block = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); block < s.first_block[s.n];
         block += (int64_t)gridDim.x * WARPS) {
        int k = 0;
        while (k + 1 < s.n && block >= s.first_block[k + 1])
            k++;
        int64_t number = block - s.first_block[k], at = number * TREK_DIGEST_BLOCK, size = s.span[k].bytes - at;
        uint64_t lanes[TREK_DIGEST_LANES];
        size = size < TREK_DIGEST_BLOCK ? size : TREK_DIGEST_BLOCK;
        digest_lanes((const unsigned char *)s.span[k].data + at, size, s.span[k].floats, lanes);
        if (half < 2)
            total += trek_digest_half(lanes, half, s.span[k].key + (uint64_t)number, (uint64_t)size);
    }
    if (half < 2)
        atomicAdd(&result[half], (unsigned long long)total);
}

static trek_status digest(trek_device device, const trek_digest_span *spans, int n, trek_digest *result)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    digest_spans s = {};
    for (int k = 0; k < n; k++) {
        s.span[s.n] = spans[k];
        s.first_block[s.n + 1] = s.first_block[s.n] + (spans[k].bytes + TREK_DIGEST_BLOCK - 1) / TREK_DIGEST_BLOCK;
        s.n++;
    }
    if (s.first_block[s.n] == 0)
        return TREK_OK;
    int64_t blocks = (s.first_block[s.n] + WARPS - 1) / WARPS;
    return trek_launch_plain("digest", queue, warps_for((blocks < DIGEST_BLOCKS ? blocks : DIGEST_BLOCKS) * WARPS), digest_kernel,
                             s, (unsigned long long *)result);
}

extern "C" void trek_cuda_register_binned(trek_backend *backend)
{
    backend->binned_add = add;
    backend->binned_raise = raise_bins;
    backend->binned_read = read_sums;
    backend->digest = digest;
}
