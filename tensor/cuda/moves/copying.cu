/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/moves/copying.cuh"

#include "tensor/cuda/elementwise/elementwise.cuh"

#define UNROLL 4

namespace {

/* --- contiguous ---------------------------------------------------------------------- */

struct same_bits {
    static constexpr int weight = TREK_LIGHT;
    template <typename T> __device__ __forceinline__ T operator()(T x) const { return x; }
};

/* --- units at any strides --------------------------------------------------------------- */

template <typename T> __global__ void __launch_bounds__(256) move_kernel(T *to, const T *from, trek_layout<2> l, uint32_t n)
{
    T x[UNROLL];
    int32_t at[UNROLL][2];
    uint32_t first = blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint32_t i = first + (uint32_t)u * blockDim.x;
        if (i >= n)
            continue;
        l.offsets(i, at[u]);
        x[u] = from[at[u][1]];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + (uint32_t)u * blockDim.x < n)
            to[at[u][0]] = x[u];
}

} // namespace

int trek_plan_widen(trek_plan *p, unsigned moved, const char *const *data, int width, int64_t *extra)
{
    for (int unit = 16; unit > width; unit /= 2) {
        int64_t r = unit / width;
        bool fits = p->sizes[0] % r == 0 && (!extra || *extra % r == 0);
        for (int k = 0; fits && k < p->operands; k++) {
            bool moves = moved >> k & 1;
            fits = p->strides[k][0] == (moves ? 1 : 0);
            fits = fits && (!moves || (p->base[k] % r == 0 && trek_aligned(data[k], (size_t)unit)));
            for (int d = 1; fits && moves && d < p->ndim; d++)
                fits = p->strides[k][d] % r == 0;
        }
        if (!fits)
            continue;
        p->sizes[0] /= r;
        for (int k = 0; k < p->operands; k++) {
            if (!(moved >> k & 1))
                continue;
            p->base[k] /= r;
            for (int d = 1; d < p->ndim; d++)
                p->strides[k][d] /= r;
        }
        if (extra)
            *extra /= r;
        return unit;
    }
    return width;
}

namespace {

/* --- transpositions ------------------------------------------------------------------------ */

/* Tiles of two dimensions: `across` is innermost in the output, `along` in the input. */
struct transposition {
    trek_layout<2> outer; /* the other dimensions */
    trek_divider across_tiles, along_tiles;
    int32_t across, along; /* sizes */
    int32_t to_along, from_across; /* strides */
};

template <typename T, int TILE> __global__ void __launch_bounds__(256) transpose_kernel(T *to, const T *from, transposition c)
{
    TREK_SHARED(T, tile, TILE * (TILE + 1));
    uint32_t unit = c.across_tiles.quotient(blockIdx.x), plane = c.along_tiles.quotient(unit);
    int32_t across = (int32_t)(blockIdx.x - unit * c.across_tiles.divisor) * TILE;
    int32_t along = (int32_t)(unit - plane * c.along_tiles.divisor) * TILE;
    int32_t at[2];
    c.outer.offsets(plane, at);
    from += at[1];
    to += at[0];
    for (int32_t y = threadIdx.y; y < TILE; y += 8)
        for (int32_t x = threadIdx.x; x < TILE; x += 32)
            if (across + y < c.across && along + x < c.along)
                tile[y * (TILE + 1) + x] = from[(across + y) * c.from_across + along + x];
    __syncthreads();
    for (int32_t y = threadIdx.y; y < TILE; y += 8)
        for (int32_t x = threadIdx.x; x < TILE; x += 32)
            if (across + x < c.across && along + y < c.along)
                to[(along + y) * c.to_along + across + x] = tile[x * (TILE + 1) + y];
}

/* Determines whether the plan exchanges its innermost dimensions and is large enough for tiles, and how. */
bool find_transposition(const trek_plan *p, int tile, transposition *c, int64_t *blocks)
{
    int along = -1;
    for (int d = 1; d < p->ndim; d++)
        if (p->strides[1][d] == 1 && p->sizes[d] >= 8)
            along = d;
    if (along < 0 || p->strides[0][0] != 1 || p->sizes[0] < 8 || p->strides[1][0] == 0)
        return false;
    trek_plan outer = *p;
    outer.ndim = 0;
    for (int d = 1; d < p->ndim; d++) {
        if (d == along)
            continue;
        outer.sizes[outer.ndim] = p->sizes[d];
        for (int k = 0; k < 2; k++)
            outer.strides[k][outer.ndim] = p->strides[k][d];
        outer.ndim++;
    }
    trek_plan_finish(&outer, false);
    c->outer = trek_layout_of<2>(outer);
    int64_t across_tiles = (p->sizes[0] + tile - 1) / tile, along_tiles = (p->sizes[along] + tile - 1) / tile;
    c->across_tiles = trek_divider_of(across_tiles);
    c->along_tiles = trek_divider_of(along_tiles);
    c->across = (int32_t)p->sizes[0];
    c->along = (int32_t)p->sizes[along];
    c->to_along = (int32_t)p->strides[0][along];
    c->from_across = (int32_t)p->strides[1][0];
    *blocks = across_tiles * along_tiles * trek_plan_numel(&outer);
    return true;
}

template <typename T>
trek_status transpose(const trek_op_call *call, trek_cuda_queue *queue, const transposition &c, int64_t blocks, char *to,
                             const char *from)
{
    constexpr int TILE = sizeof(T) >= 4 ? 32 : 64;
    return trek_launch(call, queue, trek_blocks(dim3((unsigned)blocks), dim3(32, 8)), transpose_kernel<T, TILE>, (T *)to,
                       (const T *)from, c);
}

/* --- all together ----------------------------------------------------------------------------- */

trek_status copy_part(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, char *to, const char *from, int width)
{
    to += p.base[0] * width;
    from += p.base[1] * width;
    p.base[0] = p.base[1] = 0;
    transposition c;
    int64_t n = trek_plan_numel(&p), blocks;
    if (width <= 8 && n >= 4096 && find_transposition(&p, width >= 4 ? 32 : 64, &c, &blocks))
        return trek_by_width(width, [&](auto *type) {
            typedef typename std::remove_pointer<decltype(type)>::type T;
            return transpose<T>(call, queue, c, blocks, to, from);
        });
    const char *data[2] = { to, from };
    int unit = trek_plan_widen(&p, 3, data, width, nullptr);
    n = trek_plan_numel(&p);
    return trek_by_width(unit, [&](auto *type) {
        typedef typename std::remove_pointer<decltype(type)>::type T;
        return trek_launch(call, queue, trek_loop((n + UNROLL - 1) / UNROLL), move_kernel<T>, (T *)to, (const T *)from,
                           trek_layout_of<2>(p), (uint32_t)n);
    });
}

} // namespace

trek_status trek_cuda_copy_plan(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, char *to, const char *from,
                                int width)
{
    int64_t n = trek_plan_numel(&p);
    if (n == 0)
        return TREK_OK;
    trek_plan_finish(&p, true);
    char *to_here = to + p.base[0] * width;
    const char *from_here = from + p.base[1] * width;
    if (to_here == from_here && memcmp(p.strides[0], p.strides[1], sizeof p.strides[0][0] * (size_t)p.ndim) == 0)
        return TREK_OK; /* in place */
    bool flat = p.ndim == 1 && p.strides[0][0] == 1 && p.strides[1][0] == 1;
    if (flat && trek_aligned(to_here) && trek_aligned(from_here) && width <= 8)
        return trek_by_width(width, [&](auto *type) {
            typedef typename std::remove_pointer<decltype(type)>::type T;
            return trek_map_flat<same_bits, T, T>(call, queue, same_bits(), (T *)to_here, (const T *)from_here,
                                                  (const trek_none *)nullptr, (const trek_none *)nullptr, n);
        });
    return trek_plan_run(p, [&](const trek_plan &part) { return copy_part(call, queue, part, to, from, width); });
}

trek_status trek_cuda_copy_tensor(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *out, const trek_tensor *in)
{
    trek_plan p = trek_plan_begin(out);
    trek_plan_add(&p, in);
    return trek_cuda_copy_plan(call, queue, p, out->data, in->data, trek_item_size[out->dtype]);
}
