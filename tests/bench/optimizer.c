/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of AdamW takes, for state in f32, bf16 and 8 bits: ns an element, the median of many steps. By hand, in turns with
 * another build where two are compared:
 *
 *     ninja tests/bench/trek-bench-optimizer && TREK_THREADS=1 tests/bench/trek-bench-optimizer 25000000 30 f32 bf16 u8 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* One parameter, whose gradient stays as it is: nothing but the update is measured. */
static trek_params *one_parameter(int64_t count)
{
    trek_params *params = trek_params_new();
    trek_tensor *values = trek_tensor_empty(trek_dims(count), TREK_F32, trek_cpu(0));
    if (!params || !values)
        return NULL;
    bench_fill(trek_tensor_data(values), count, 1, 0, 1);
    trek_var *param = trek_var_new(values, true);
    bench_fill(trek_tensor_data(values), count, 2, 0, 1e-2f);
    trek_var *grad = trek_var_new(values, false);
    trek_status status = trek_params_add(params, "w", param);
    if (status == TREK_OK)
        status = trek_var_set_grad(param, grad);
    trek_var_release(param);
    trek_var_release(grad);
    trek_tensor_release(values);
    return status == TREK_OK ? params : NULL;
}

static int measure(int64_t count, int steps, trek_dtype state)
{
    trek_params *params = one_parameter(count);
    trek_optimizer_spec spec = trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 1e-3 }), state);
    trek_optimizer *optimizer = params ? trek_optimizer_new(spec, params) : NULL;
    double *took = calloc((size_t)steps, sizeof *took);
    trek_status status = optimizer && took ? trek_optimizer_step(optimizer) : trek_error_status();
    for (int k = 0; k < steps && status == TREK_OK; k++) {
        int64_t start = bench_now_ns();
        status = trek_optimizer_step(optimizer);
        took[k] = (double)(bench_now_ns() - start);
    }
    double middle = status == TREK_OK ? median(took, steps) / (double)count : 0;
    if (status == TREK_OK) /* in order now */
        printf("%s %lld elements: %.4f ns an element (least %.4f)\n", trek_dtype_name(state), (long long)count, middle,
               took[0] / (double)count);
    else
        fprintf(stderr, "trek-bench-optimizer: %s\n", trek_error());
    free(took);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    return status == TREK_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_U8 };
    int64_t count = argc > 3 ? atoll(argv[1]) : 0;
    int steps = argc > 3 ? atoi(argv[2]) : 0, failed = 0;
    if (count < 1 || steps < 1) {
        fprintf(stderr, "trek-bench-optimizer ELEMENTS STEPS f32|bf16|u8 ...\n");
        return 2;
    }
    for (int k = 3; k < argc; k++)
        for (int d = 0; d < 3; d++)
            if (strcmp(argv[k], trek_dtype_name(dtypes[d])) == 0)
                failed |= measure(count, steps, dtypes[d]);
    return failed;
}
