/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/products/blas.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/late.h"
#include "tensor/status_internal.h"

#ifndef TREK_BLAS_DEFAULT
#define TREK_BLAS_DEFAULT ""
#endif

enum { LEAST_EDGE = 64, MOST_SLICES = 16 };
#define SLICE_WORK                                                                                                               \
    3.2e7 /* multiplications of the smallest slice: in smaller ones libraries lose a fifth of their rate (measured) */

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* constants of CBLAS */

typedef void sgemm_fn(int order, int a_kind, int b_kind, int m, int n, int k, float alpha, const float *a, int a_step,
                      const float *b, int b_step, float beta, float *c, int c_step);
typedef void dgemm_fn(int order, int a_kind, int b_kind, int m, int n, int k, double alpha, const double *a, int a_step,
                      const double *b, int b_step, double beta, double *c, int c_step);

static struct {
    sgemm_fn *sgemm;
    dgemm_fn *dgemm;
    int (*set_local)(int threads); /* of oneMKL: for the calling thread only; returns what was set before */
    bool usable;
} blas;

/* An operand as CBLAS describes it. */
typedef struct layout {
    int kind, step;
} layout;

typedef struct sliced {
    const trek_gemm *g;
    trek_dtype dtype;
    trek_blas_finish finish;
    layout a, b;
    int64_t rows, cols, row_slices, col_slices; /* of a slice; number of slices */
} sliced;

static void call_blas(trek_dtype dtype, layout a_is, layout b_is, int64_t m, int64_t n, int64_t k, const void *a, const void *b,
                      bool add, void *c, int64_t c_step)
{
    int threads = blas.set_local ? blas.set_local(1) : 0;
    if (dtype == TREK_F32)
        blas.sgemm(ROW_MAJOR, a_is.kind, b_is.kind, (int)m, (int)n, (int)k, 1, a, a_is.step, b, b_is.step, add, c, (int)c_step);
    else
        blas.dgemm(ROW_MAJOR, a_is.kind, b_is.kind, (int)m, (int)n, (int)k, 1, a, a_is.step, b, b_is.step, add, c, (int)c_step);
    if (blas.set_local)
        blas.set_local(threads);
}

/* -- opening -- */

void *trek_blas_open_library(const char *name, char *why, size_t size)
{
    static const char *const known[][4] = { { "openblas", "libopenblas.so.0", "libopenblas.so" },
                                            { "mkl", "libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so" },
                                            { "blis", "libblis.so.4", "libblis-mt.so", "libblis.so" } };
    const char *const *files = &name;
    int count = 1;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (strcmp(name, known[k][0]) == 0)
            files = known[k] + 1, count = 3;
    for (int k = 0; k < count && files[k]; k++) {
        bool valid = trek_late_name_valid(files[k]);
        void *library = valid ? dlopen(files[k], RTLD_NOW | RTLD_LOCAL) : NULL;
        const char *problem = library ? NULL : valid ? dlerror() : TREK_LATE_RELATIVE;
        if (library)
            return library;
        if (!why[0])
            snprintf(why, size, "%s", problem ? problem : "it cannot be opened");
    }
    return NULL;
}

/* Looks a function up and stores its address in *to. */
static bool find(void *library, const char *prefix, const char *name, void *to)
{
    char text[80];
    snprintf(text, sizeof text, "%s%s", prefix, name);
    void *address = dlsym(library, text);
    memcpy(to, &address, sizeof address);
    return address != NULL;
}

static const char *prepare_openblas(void *library, const char *prefix)
{
    void (*set)(int);
    int (*parallel)(void);
    const char *(*config)(void);
    find(library, prefix, "openblas_set_num_threads", &set);
    if (find(library, prefix, "openblas_get_config", &config) && strstr(config(), "USE64BITINT"))
        return "its integers have 64 bits";
    if (find(library, prefix, "openblas_get_parallel", &parallel) && parallel() != 1)
        return parallel() == 0 ? "this build may be called by one thread only: the one with pthreads is needed"
                               : "this build has OpenMP's threads: the one with pthreads is needed";
    set(1);
    return NULL;
}

static const char *prepare_mkl(void *library)
{
    int (*set_layer)(int);
    if (find(library, "", "MKL_Set_Interface_Layer", &set_layer))
        set_layer(0); /* integers of 32 bits */
    if (find(library, "", "MKL_Set_Threading_Layer", &set_layer))
        set_layer(1); /* no threads: has no effect in a program that has used the library before */
    return NULL;
}

static const char *prepare_blis(void *library)
{
    void (*set)(int64_t);
    int64_t (*bits)(void);
    find(library, "", "bli_thread_set_num_threads", &set);
    if (find(library, "", "bli_info_get_blas_int_type_size", &bits) && bits() != 32)
        return "its integers have 64 bits";
    set(1);
    return NULL;
}

const char *trek_blas_quiet(void *library, const char *prefix, bool *known)
{
    void (*set)(void);
    int (*set_local)(int);
    *known = true;
    if (find(library, prefix, "openblas_set_num_threads", &set))
        return prepare_openblas(library, prefix);
    if (find(library, "", "MKL_Set_Num_Threads_Local", &set_local))
        return prepare_mkl(library);
    if (find(library, "", "bli_thread_set_num_threads", &set))
        return prepare_blis(library);
    *known = false;
    return NULL;
}

/* Finds the products and makes sure that they start no threads. Returns what is wrong, or NULL. */
static const char *prepare(void *library)
{
    static const char *const prefixes[] = { "", "scipy_" }; /* the second: PyPI's scipy-openblas32 */
    for (int k = 0; k < 2; k++) {
        bool known;
        if (!find(library, prefixes[k], "cblas_sgemm", &blas.sgemm) || !find(library, prefixes[k], "cblas_dgemm", &blas.dgemm))
            continue;
        find(library, "", "MKL_Set_Num_Threads_Local", &blas.set_local);
        const char *problem = trek_blas_quiet(library, prefixes[k], &known);
        return known ? problem : "it is none of OpenBLAS, oneMKL and BLIS, whose threads can be switched off";
    }
    return "it has no cblas_sgemm and cblas_dgemm";
}

/* Checks a small product with integer values: C is not read, row strides are larger than rows, B is transposed. */
static bool computes(trek_dtype dtype)
{
    enum { M = 5, N = 3, K = 4, STEP = 7 };
    float a32[M * STEP], b32[N * STEP], c32[M * STEP];
    double a64[M * STEP], b64[N * STEP], c64[M * STEP];
    for (int i = 0; i < M * STEP; i++) {
        a64[i] = a32[i] = (float)(i % 11 - 5);
        c64[i] = c32[i] = NAN;
    }
    for (int i = 0; i < N * STEP; i++)
        b64[i] = b32[i] = (float)(i % 13 - 6);
    bool f32 = dtype == TREK_F32;
    call_blas(dtype, (layout){ PLAIN, STEP }, (layout){ TRANSPOSED, STEP }, M, N, K, f32 ? (void *)a32 : a64,
              f32 ? (void *)b32 : b64, false, f32 ? (void *)c32 : c64, STEP);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < STEP; j++) {
            double sum = 0, c = f32 ? (double)c32[i * STEP + j] : c64[i * STEP + j];
            for (int p = 0; p < K && j < N; p++)
                sum += a64[i * STEP + p] * b64[j * STEP + p];
            if (j < N ? c != sum : !isnan(c))
                return false;
        }
    return true;
}

/* Returns NULL if none is asked for. */
static const char *name_of_library(void)
{
    const char *name = trek_late_named("TREK_BLAS");
    name = name ? name : TREK_BLAS_DEFAULT;
    return *name && strcmp(name, "off") != 0 ? name : NULL;
}

bool trek_blas_asked_for(void) { return name_of_library() != NULL; }

static void open_blas(void)
{
    const char *name = name_of_library();
    if (!name)
        return;
    char why[300] = "";
    void *library = trek_blas_open_library(name, why, sizeof why);
    const char *problem = library ? prepare(library) : why;
    if (!problem && (!computes(TREK_F32) || !computes(TREK_F64)))
        problem = "a small product of it is wrong";
    blas.usable = !problem;
    if (problem)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "BLAS %.200s is not used: %s", name, problem);
    else
        trek_log_message(TREK_LOG_LEVEL_INFO, "large products are computed by the BLAS %.200s", name);
}

/* -- slices -- */

static bool describe(int64_t row, int64_t col, int64_t rows, int64_t cols, layout *is)
{
    bool plain = col == 1 && row >= cols;
    int64_t step = plain ? row : col;
    *is = (layout){ plain ? PLAIN : TRANSPOSED, (int)step };
    return (plain || (row == 1 && col >= rows)) && step <= INT_MAX;
}

static bool suits(const trek_gemm *g, sliced *s)
{
    bool large = g->m >= LEAST_EDGE && g->n >= LEAST_EDGE && g->k >= LEAST_EDGE &&
        (double)g->m * (double)g->n * (double)g->k >= 2 * SLICE_WORK;
    return large && g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->c_col == 1 && g->c_row >= g->n &&
           g->c_row <= INT_MAX && describe(g->a_row, g->a_col, g->m, g->k, &s->a) &&
           describe(g->b_row, g->b_col, g->k, g->n, &s->b);
}

/* Halves the longer side of a slice while the halves are large enough. */
static void cut(sliced *s)
{
    const trek_gemm *g = s->g;
    double work = (double)g->m * (double)g->n * (double)g->k;
    int64_t rows = 1, cols = 1;
    while (rows * cols < MOST_SLICES && work / (double)(rows * cols) >= 2 * SLICE_WORK)
        *(g->m / rows >= g->n / cols ? &rows : &cols) *= 2;
    s->rows = ((g->m + rows - 1) / rows + 15) / 16 * 16;
    s->cols = ((g->n + cols - 1) / cols + 15) / 16 * 16;
    s->row_slices = (g->m + s->rows - 1) / s->rows;
    s->col_slices = (g->n + s->cols - 1) / s->cols;
}

static void run_slices(void *arg, int64_t begin, int64_t end)
{
    const sliced *s = arg;
    const trek_gemm *g = s->g;
    int64_t size = s->dtype == TREK_F32 ? 4 : 8;
    for (int64_t slice = begin; slice < end; slice++) {
        int64_t row = slice / s->col_slices * s->rows, col = slice % s->col_slices * s->cols;
        int64_t rows = g->m - row < s->rows ? g->m - row : s->rows, cols = g->n - col < s->cols ? g->n - col : s->cols;
        call_blas(s->dtype, s->a, s->b, rows, cols, g->k, (const char *)g->a + row * g->a_row * size,
                  (const char *)g->b + col * g->b_col * size, g->accumulate, (char *)g->c + (row * g->c_row + col) * size,
                  g->c_row);
        if (s->finish)
            s->finish(g, row, col, rows, cols);
    }
}

bool trek_blas_gemm(const trek_gemm *g, trek_dtype dtype, trek_blas_finish finish)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sliced s = { .g = g, .dtype = dtype, .finish = finish };
    if (!suits(g, &s))
        return false;
    pthread_once(&once, open_blas);
    if (!blas.usable)
        return false;
    cut(&s);
    trek_parallel(s.row_slices * s.col_slices, 1, run_slices, &s);
    return true;
}
