/* SPDX-License-Identifier: Apache-2.0 */
/* A BLAS for test_blas: what the library asks of OpenBLAS, by plain loops, and counts of it. */
#include <stdatomic.h>

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

#define STAND_IN(name, real)                                                                                        \
    void name(int order, int a_kind, int b_kind, int m, int n, int k, real alpha, const real *a, int a_step,        \
              const real *b, int b_step, real beta, real *c, int c_step)                                            \
    {                                                                                                               \
        const int a_row = a_kind == 111 ? a_step : 1, a_col = a_kind == 111 ? 1 : a_step;                           \
        const int b_row = b_kind == 111 ? b_step : 1, b_col = b_kind == 111 ? 1 : b_step;                           \
        calls++;                                                                                                    \
        for (int i = 0; order == 101 && i < m; i++)                                                                 \
            for (int j = 0; j < n; j++) {                                                                           \
                double sum = 0;                                                                                     \
                for (int p = 0; p < k; p++)                                                                         \
                    sum += (double)a[i * a_row + p * a_col] * (double)b[p * b_row + j * b_col];                     \
                real *to = &c[(long)i * c_step + j];                                                                \
                *to = (real)(STAND_IN_FACTOR * alpha * sum) + (beta == 0 ? 0 : beta * *to);                         \
            }                                                                                                       \
    }
STAND_IN(cblas_sgemm, float)
STAND_IN(cblas_dgemm, double)
