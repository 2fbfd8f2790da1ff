/* SPDX-License-Identifier: Apache-2.0 */
/* Times matrix products for products.py. A line of input, "KIND COUNT M N K DTYPE MS", asks for
 * the time of one product, measured over MS milliseconds after one call that is not counted;
 * the answer is a line of nanoseconds. KIND: nn, nt, tn (which operand is a transposed view). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trek.h"

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static trek_var *operand(long count, long rows, long cols, trek_dtype dtype, uint64_t seed)
{
    trek_seed(seed);
    trek_tensor *t = trek_tensor_rand(count > 1 ? trek_dims(count, rows, cols) : trek_dims(rows, cols), dtype, trek_cpu(0));
    return t ? trek_var_new(t, false) : NULL;
}

static bool run_once(trek_var *a, trek_var *b, bool transpose_a, bool transpose_b)
{
    trek_scope scope = trek_scope_begin();
    bool fine = trek_matmul(transpose_a ? trek_transpose(a, -2, -1) : a, transpose_b ? trek_transpose(b, -2, -1) : b) != NULL;
    trek_scope_end(scope);
    return fine;
}

static trek_dtype dtype_of(const char *name)
{
    static const trek_dtype all[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (int k = 1; k < 4; k++)
        if (strcmp(name, trek_dtype_name(all[k])) == 0)
            return all[k];
    return TREK_F32;
}

static double measure(const char *kind, long count, long m, long n, long k, trek_dtype dtype, double ms)
{
    bool ta = kind[0] == 't', tb = kind[1] == 't';
    trek_scope scope = trek_scope_begin();
    trek_var *a = ta ? operand(count, k, m, dtype, 1) : operand(count, m, k, dtype, 1);
    trek_var *b = tb ? operand(count, n, k, dtype, 2) : operand(count, k, n, dtype, 2);
    bool fine = a && b && run_once(a, b, ta, tb);
    int64_t begin = now_ns(), end = begin, times = 0;
    while (fine && (double)(end - begin) < ms * 1e6) {
        fine = run_once(a, b, ta, tb);
        end = now_ns();
        times++;
    }
    trek_scope_end(scope);
    return fine && times > 0 ? (double)(end - begin) / (double)times : -1;
}

int main(void)
{
    char line[256], kind[8], dtype[8];
    long count, m, n, k;
    double ms;
    trek_no_grad_begin();
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%7s %ld %ld %ld %ld %7s %lf", kind, &count, &m, &n, &k, dtype, &ms) != 7) {
            fprintf(stderr, "products: no request: %s", line);
            return 2;
        }
        double ns = measure(kind, count, m, n, k, dtype_of(dtype), ms);
        if (ns < 0) {
            fprintf(stderr, "products: %s\n", trek_error());
            return 1;
        }
        printf("%.1f\n", ns);
        fflush(stdout);
    }
    trek_no_grad_end();
    return 0;
}
