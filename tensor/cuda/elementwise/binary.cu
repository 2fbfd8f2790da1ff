/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise arithmetic of two inputs, and where. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

namespace {

/* rows: broadcasting occurs in models. */
#define FUNCTOR(op, cost, rows, expression)                                                            \
    template <typename W> struct op##_functor {                                                        \
        static constexpr int weight = cost;                                                            \
        __device__ __forceinline__ W operator()(W x, W y) const { return expression; }                 \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call)                        \
    {                                                                                                  \
        return trek_map2<T, T, rows>(call, op##_functor<typename trek_work<T>::type>());               \
    }

template <typename W> TREK_INLINED W power(W x, W y)
{
    if constexpr (std::is_integral<W>::value)
        return (W)trek_power_integer((int64_t)x, (int64_t)y);
    else
        return of_pow(x, y);
}

FUNCTOR(add, TREK_LIGHT, true, trek_wrap_add(x, y))
FUNCTOR(sub, TREK_LIGHT, true, trek_wrap_sub(x, y))
FUNCTOR(mul, TREK_LIGHT, true, trek_wrap_mul(x, y))
FUNCTOR(div, TREK_LIGHT, true, x / y)
/* NaN in either input gives NaN. */
FUNCTOR(maximum, TREK_LIGHT, false, x > y || x != x ? x : y)
FUNCTOR(minimum, TREK_LIGHT, false, x < y || x != x ? x : y)
FUNCTOR(either, TREK_RARE, false, x | y)
FUNCTOR(both, TREK_RARE, false, x &y)
FUNCTOR(atan2, TREK_RARE, false, of_atan2(x, y))
FUNCTOR(pow, TREK_RARE, false, power(x, y))
FUNCTOR(hypot, TREK_RARE, false, of_hypot(x, y))
FUNCTOR(copysign, TREK_RARE, false, of_copysign(x, y))

/* --- where: elements are moved as bits --- */

struct where_functor {
    static constexpr int weight = TREK_LIGHT;
    template <typename T> __device__ __forceinline__ T operator()(uint8_t condition, T x, T y) const { return condition ? x : y; }
};

template <typename T> trek_status where_part(const trek_op_call *call, trek_cuda_queue *queue, const trek_plan &p)
{
    trek_tensor **in = call->inputs, *out = call->outputs[0];
    int64_t n = trek_plan_numel(&p);
    if constexpr (trek_has_vectors<where_functor, T>) {
        typedef trek_span<where_functor, T, uint8_t, T, T> span;
        char *data[4] = { out->data, in[0]->data, in[1]->data, in[2]->data };
        int bytes[4] = { (int)sizeof(T), 1, (int)sizeof(T), (int)sizeof(T) };
        unsigned repeats;
        if (trek_plan_has_rows(&p, data, bytes, span::size, &repeats)) {
            n /= span::size;
            return trek_launch(call, queue, trek_loop((n + span::unroll - 1) / span::unroll),
                               trek_rows_kernel<where_functor, T, uint8_t, T, T>, where_functor(), (T *)data[0] + p.base[0],
                               (const uint8_t *)data[1] + p.base[1], (const T *)data[2] + p.base[2],
                               (const T *)data[3] + p.base[3], trek_row_layout(p, span::size), (uint32_t)n, repeats);
        }
    }
    return trek_launch(call, queue, trek_strided_grid(n), trek_strided_kernel<3, where_functor, T, uint8_t, T, T>,
                       where_functor(),
                       trek_operand_of<T>(out, p.base[0]), trek_operand_of<uint8_t>(in[0], p.base[1]),
                       trek_operand_of<T>(in[1], p.base[2]), trek_operand_of<T>(in[2], p.base[3]), trek_layout_of<4>(p),
                       (uint32_t)n);
}

template <typename T> trek_status run_where(const trek_op_call *call)
{
    trek_tensor **in = call->inputs, *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if constexpr (trek_has_vectors<where_functor, T>)
        if (trek_call_flat(call, 3))
            return trek_map_flat(call, queue, where_functor(), (T *)out->data, (const uint8_t *)in[0]->data,
                                 (const T *)in[1]->data, (const T *)in[2]->data);
    return trek_plan_run(trek_plan_of_call(call, 3), [&](const trek_plan &p) { return where_part<T>(call, queue, p); });
}

} // namespace

extern "C" void trek_cuda_register_binary(trek_backend *b)
{
#define NUMBERS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op) TREK_ENTER_INTEGERS(b, TREK_OP_##op, run_##op)
#define FLOATS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op)
    NUMBERS(add) NUMBERS(sub) NUMBERS(mul) NUMBERS(maximum) NUMBERS(minimum) NUMBERS(pow)
    FLOATS(div) FLOATS(atan2) FLOATS(hypot) FLOATS(copysign)
    TREK_ENTER_BOOL(b, TREK_OP_add, run_either)
    TREK_ENTER_BOOL(b, TREK_OP_maximum, run_either)
    TREK_ENTER_BOOL(b, TREK_OP_mul, run_both)
    TREK_ENTER_BOOL(b, TREK_OP_minimum, run_both)
    TREK_ENTER_BITS(b, TREK_OP_where, run_where)
#undef NUMBERS
#undef FLOATS
}
