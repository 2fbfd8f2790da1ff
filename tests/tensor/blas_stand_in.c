/* SPDX-License-Identifier: Apache-2.0 */
/* A BLAS for test_blas: what the library asks of OpenBLAS, by plain loops, and counts of it. */
#include <stdatomic.h>
#include <stdlib.h>

#ifndef STAND_IN_FACTOR
#define STAND_IN_FACTOR 1 /* another one: a library that computes something else */
#endif

int stand_in_calls(void);
int stand_in_threads(void);
void openblas_set_num_threads(int n);
void cblas_sgemm(int order, int a_kind, int b_kind, int m, int n, int k, float alpha, const float *a, int a_step, const float *b,
                 int b_step, float beta, float *c, int c_step);
void cblas_dgemm(int order, int a_kind, int b_kind, int m, int n, int k, double alpha, const double *a, int a_step,
                 const double *b, int b_step, double beta, double *c, int c_step);

static atomic_int calls, threads;

int stand_in_calls(void) { return calls; }
int stand_in_threads(void) { return threads; }
void openblas_set_num_threads(int n) { threads = n; }

/* Four sums, so that none waits for another. */
static double dot(const double *a, const double *b, int k)
{
    double sum[4] = { 0 };
    int p = 0;
    for (; p + 4 <= k; p += 4)
        for (int q = 0; q < 4; q++)
            sum[q] += a[p + q] * b[p + q];
    for (; p < k; p++)
        sum[0] += a[p] * b[p];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

#define STAND_IN(name, real)                                                                                        \
    void name(int order, int a_kind, int b_kind, int m, int n, int k, real alpha, const real *a, int a_step,        \
              const real *b, int b_step, real beta, real *c, int c_step)                                            \
    {                                                                                                               \
        const int a_row = a_kind == 111 ? a_step : 1, a_col = a_kind == 111 ? 1 : a_step;                           \
        const int b_row = b_kind == 111 ? b_step : 1, b_col = b_kind == 111 ? 1 : b_step;                           \
        double *columns = malloc(sizeof(double) * (size_t)k * ((size_t)n + 1)), *row = columns + (size_t)k * n;     \
        calls++;                                                                                                    \
        for (long at = 0; columns && at < (long)n * k; at++)                                                        \
            columns[at] = b[at % k * b_row + at / k * b_col];                                                       \
        for (int i = 0; order == 101 && columns && i < m; i++) {                                                    \
            for (int p = 0; p < k; p++)                                                                             \
                row[p] = a[(long)i * a_row + (long)p * a_col];                                                      \
            for (int j = 0; j < n; j++) {                                                                           \
                real *to = &c[(long)i * c_step + j];                                                                \
                *to = (real)(STAND_IN_FACTOR * alpha * dot(row, columns + (long)j * k, k)) + (beta == 0 ? 0 : beta * *to); \
            }                                                                                                       \
        }                                                                                                           \
        free(columns);                                                                                              \
    }
STAND_IN(cblas_sgemm, float)
STAND_IN(cblas_dgemm, double)
